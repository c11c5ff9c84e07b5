"""Commands on the event log and its database."""
