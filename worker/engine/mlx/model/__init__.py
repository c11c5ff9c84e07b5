"""Finds, loads and identifies models, their vocabularies and their tool-call families."""
