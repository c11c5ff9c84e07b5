"""The webhooks table, and the checkpoint of the position up to which webhooks are made."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.tables import TEXT

revision = "0005"
down_revision = "0004"

_INDEXES = (
    ("ix_webhooks_state_next_at", ["state", "next_at"]),
    ("ix_webhooks_host_state_next_at", ["host", "state", "next_at"]),
    ("ix_webhooks_subject_position", ["subject", "position"]),
    ("ix_webhooks_position_id", ["position", "id"]),
)


def upgrade() -> None:
    texts = ("id", "subject", "event", "url", "host", "created_at", "state")
    columns = [sa.Column(name, TEXT, nullable=False) for name in texts]
    op.create_table(
        "webhooks",
        *columns,
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", TEXT, nullable=True),
        sa.Column("last_at", TEXT, nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", TEXT, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_webhooks"),
    )
    for name, columns_of_index in _INDEXES:
        op.create_index(name, "webhooks", columns_of_index)
    op.execute(
        "INSERT INTO checkpoints (name, version, position)"
        " SELECT 'webhooks', 1, coalesce(max(position), 0) FROM events"
    )
