"""The ``semantic`` command."""
