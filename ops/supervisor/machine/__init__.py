"""The service of the operating system that runs ``semantic serve``: launchd or systemd."""
