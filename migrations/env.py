"""Runs the migrations on the connection that ``ops.log.migrate`` hands over.

That connection is in a transaction already, so all steps happen or none. Nothing here touches the
logging configuration.
"""

from __future__ import annotations

from alembic import context

from ops.log.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    # Alembic assumes that SQLite cannot roll back DDL; it can.
    transactional_ddl=True,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
