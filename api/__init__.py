"""HTTP in: the shield, the operations and the wire dialects. Never imports ``worker``."""
