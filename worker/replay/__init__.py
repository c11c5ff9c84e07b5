"""Computes recorded answers again and compares them token by token."""
