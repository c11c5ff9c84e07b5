"""Keys and deadlines of jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.tables import TEXT

revision = "0002"
down_revision = "0001"

_JOB_COLUMNS = ("idempotency", "asked", "deadline", "finish_deadline")


def upgrade() -> None:
    for table in ("jobs", "jobs_next"):
        for name in _JOB_COLUMNS:
            op.add_column(table, sa.Column(name, TEXT, nullable=True))
    op.create_index("ix_jobs_idempotency", "jobs", ["idempotency"], unique=True)
    op.create_index("ix_jobs_asked_accepted_position", "jobs", ["asked", "accepted_position"])
