"""The archives of the log: positions, hashes and file names."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.tables import TEXT

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "archives",
        sa.Column("last_position", sa.BigInteger(), nullable=False),
        sa.Column("first_position", sa.BigInteger(), nullable=False),
        sa.Column("base_hash", TEXT, nullable=False),
        sa.Column("last_hash", TEXT, nullable=False),
        sa.Column("file", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("last_position", name="pk_archives"),
    )
