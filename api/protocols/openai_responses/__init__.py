"""OpenAI Responses: pure parsers and encoders."""
