"""OpenAI text completions (``/v1/completions``): parsers and encoders."""
