"""The broker process: a private redis-server, or the in-memory trial broker."""
