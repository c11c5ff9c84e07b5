"""Requests and replies in the types of the web framework, and the life of the process."""
