"""The trace of a job and of a webhook, and two phases of a job; unknown for earlier ones."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.tables import TEXT

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    for table in ("jobs", "jobs_next", "webhooks"):
        op.add_column(table, sa.Column("trace", TEXT, nullable=True))
    for table in ("jobs", "jobs_next"):
        for name in ("admission_ms", "restore_ms"):
            column = sa.Column(name, sa.Float(), nullable=False, server_default="0")
            op.add_column(table, column)
