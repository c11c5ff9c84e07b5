"""Lines of batches, Anthropic and OpenAI: pure parsers and encoders."""
