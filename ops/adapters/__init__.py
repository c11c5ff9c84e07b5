"""The real implementations of ``domain.ports`` on SQLite, Redis and Dramatiq."""
