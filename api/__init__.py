"""HTTP in: the server of the socket, the routes and the wire protocols. Never imports ``worker``."""
