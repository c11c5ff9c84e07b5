"""OpenAI chat completions and text completions: pure parsers and encoders."""
