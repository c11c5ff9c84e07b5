"""Ollama's API, as its client libraries use it."""
