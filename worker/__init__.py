"""Jobs in, tokens out: the Dramatiq worker and the engine. Never imports ``api``."""
