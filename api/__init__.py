"""HTTP in: the gate, Robyn's routes and the wire protocols. Never imports ``worker``."""
