"""A job as a fold over its events: decisions, lists, queue order and ETA."""
