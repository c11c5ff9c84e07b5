"""The one importable package of an installation: the command, and the service in ``app``."""
