"""The broker process: a private redis-server or valkey-server."""
