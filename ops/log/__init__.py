"""The event log on SQLite and PostgreSQL: tables, writer, readers, archives, drivers."""
