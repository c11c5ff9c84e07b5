"""Anthropic's Message Batches, OpenAI's batches, and the files of the latter."""
