"""The public socket: parses, bounds and forwards requests, and knows when a client has gone."""
