"""The web framework: requests and replies in its types, the composition of the process, and its life."""
