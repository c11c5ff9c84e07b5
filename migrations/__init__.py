"""Schema history of the event log (Alembic)."""
