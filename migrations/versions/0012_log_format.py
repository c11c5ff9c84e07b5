"""The least reader version that the log needs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.tables import TEXT

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    table = op.create_table(
        "log_format",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_log_format"),
    )
    op.bulk_insert(table, [{"name": "reader_min", "version": 1}])
