"""A job as a fold over its events: commands, decisions, views, queue order and ETA."""
