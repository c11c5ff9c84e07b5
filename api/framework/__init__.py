"""The web framework, the composition of the process, and its life."""
