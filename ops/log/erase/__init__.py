"""Erases the texts that no owner needs from every file of the log, while it may be written to."""
