"""Commands on the service itself: serve, status, doctor, config, claude."""
