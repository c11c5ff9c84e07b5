"""The shield in front of Robyn: sockets, framing, limits, timeouts, draining."""
