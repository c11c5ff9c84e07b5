"""HTTP in: the socket's server, the routes and the wire protocols. Never imports ``worker``."""
