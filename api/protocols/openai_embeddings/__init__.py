"""OpenAI embeddings (``/v1/embeddings``): the parser and the encoder of vectors."""
