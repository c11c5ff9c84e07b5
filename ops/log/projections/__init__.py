"""Tables and queries that are derived from the log and can be rebuilt."""
