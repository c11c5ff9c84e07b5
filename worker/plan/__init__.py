"""Plans the memory of a model from its ``config.json``, before a download. Loads no weights."""
