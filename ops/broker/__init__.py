"""The broker child: a private redis-server, or else a server for trial in its own process."""
