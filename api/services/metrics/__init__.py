"""Reads the metrics of the service for a scrape: from the log, the workers and this process."""
