"""Recorded answers computed again and compared token by token."""
