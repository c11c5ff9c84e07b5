"""The web framework, and the life of the process that runs it."""
