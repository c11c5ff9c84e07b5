"""OpenAI Responses (``/v1/responses``), with its stored turns and the grammars of custom tools."""
