"""Anthropic Messages (``/v1/messages``): parsers and encoders."""
