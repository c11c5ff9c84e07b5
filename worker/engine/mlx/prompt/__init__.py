"""Renders a request to the token ids of its prompt."""
