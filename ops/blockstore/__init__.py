"""KV blocks on disk, one content-addressed store for all agents. Knows bytes, not arrays."""
