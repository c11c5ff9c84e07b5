"""Counts of reasoning tokens and of prompt tokens in stored blocks; 0 for earlier jobs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

_COUNTS = ("reasoning_tokens", "kept_tokens")


def upgrade() -> None:
    for table in ("jobs", "jobs_next"):
        for name in _COUNTS:
            column = sa.Column(name, sa.Integer(), nullable=False, server_default="0")
            op.add_column(table, column)
