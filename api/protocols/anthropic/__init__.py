"""Anthropic Messages: pure parsers and encoders."""
