"""The API key that made a job, an agent, a file, a batch or a webhook; opening the log fills it.

Sums of usage are kept by owner too. Their tables are created anew and filled from the events.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.tables import TEXT

revision = "0011"
down_revision = "0010"

_OWNED = ("jobs", "jobs_next", "agents", "agents_next", "webhooks")
_KEYS = ("hour", "model", "agent", "owner")
_FIGURES = (
    "completed",
    "failed",
    "cancelled",
    "expired",
    "attempts",
    "failed_attempts",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "kept_tokens",
    "hits",
    "ram_tokens",
    "disk_tokens",
    "misses_diverged",
    "misses_gone",
    "misses_model_changed",
    "missed_tokens",
    "started_jobs",
    "timed_jobs",
    "queue_us",
    "restore_us",
    "prefill_us",
    "first_token_us",
    "decode_us",
    "total_us",
)


def upgrade() -> None:
    for table in _OWNED:
        op.add_column(table, sa.Column("owner", TEXT, nullable=True))
    op.create_index("ix_jobs_owner_accepted_position", "jobs", ["owner", "accepted_position"])
    op.create_index("ix_agents_owner_position", "agents", ["owner", "position"])
    op.create_index("ix_webhooks_owner_position", "webhooks", ["owner", "position"])
    for suffix in ("", "_next"):
        name = f"owned_streams{suffix}"
        op.create_table(
            name,
            sa.Column("stream", TEXT, nullable=False),
            sa.Column("owner", TEXT, nullable=False),
            sa.PrimaryKeyConstraint("stream", name=f"pk_{name}"),
        )
        sums = f"usage_hours{suffix}"
        op.drop_table(sums)
        op.create_table(
            sums,
            *(sa.Column(key, TEXT, nullable=False) for key in _KEYS),
            *(sa.Column(figure, sa.BigInteger(), nullable=False) for figure in _FIGURES),
            sa.PrimaryKeyConstraint(*_KEYS, name=f"pk_{sums}"),
        )
    op.create_index("ix_owned_streams_owner", "owned_streams", ["owner"])
