"""OpenAI Responses (``/v1/responses``): parsers and encoders, the grammars of custom tools."""
