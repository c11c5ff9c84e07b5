"""OpenAI text completions: pure parsers and encoders."""
