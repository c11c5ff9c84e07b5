"""Registered models on this machine: the registry from the settings, and the hub's local cache."""
