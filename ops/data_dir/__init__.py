"""Files of the data directory: lock, worker identity, secrets."""
