"""The model that a job is bound to, and the one that answered it; unbound for earlier jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.tables import TEXT

revision = "0007"
down_revision = "0006"

_NAMES = ("bound_model", "answered_by", "fingerprint")


def upgrade() -> None:
    for table in ("jobs", "jobs_next"):
        for name in _NAMES:
            op.add_column(table, sa.Column(name, TEXT, nullable=True))
        op.add_column(
            table, sa.Column("parks", sa.Boolean(), nullable=False, server_default=sa.false())
        )
        op.add_column(table, sa.Column("epoch", sa.Integer(), nullable=False, server_default="1"))
