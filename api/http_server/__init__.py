"""The HTTP server in front of Robyn: sockets, framing, limits, timeouts, draining."""
