"""OpenAI chat completions (``/v1/chat/completions``): parsers and encoders."""
