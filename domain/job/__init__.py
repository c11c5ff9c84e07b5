"""A job as a fold over its events, its decisions, its order, and its life from submit to end."""
