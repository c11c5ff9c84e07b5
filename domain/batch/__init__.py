"""A batch as a fold over its events, its files and its line payloads."""
