"""An index that counts the jobs of a request or batch without reading other jobs."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_index("ix_jobs_correlation_id_status_id", "jobs", ["correlation_id", "status", "id"])
