"""The agents projection; opening the log fills it from the events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.tables import TEXT

revision = "0010"
down_revision = "0009"

_TEXTS = ("id", "first_seen", "last_seen")
_OPTIONAL_TEXTS = (
    "cache_event",
    "cache_event_at",
    "last_job",
    "last_model",
    "created_at",
    "parent",
)
_COUNTS = (
    "jobs",
    "open_jobs",
    "hits",
    "misses_diverged",
    "misses_gone",
    "misses_model_changed",
    "disk_blocks",
    "inherited",
)
_SUMS = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "reasoning_tokens",
    "kept_tokens",
    "known_tokens",
    "ram_tokens",
    "disk_tokens",
    "missed_tokens",
    "context_tokens",
    "position",
    "created_position",
)


def upgrade() -> None:
    for name in ("agents", "agents_next"):
        op.create_table(
            name,
            *(sa.Column(column, TEXT, nullable=False) for column in _TEXTS),
            *(sa.Column(column, TEXT, nullable=True) for column in _OPTIONAL_TEXTS),
            *(sa.Column(column, sa.Integer(), nullable=False) for column in _COUNTS),
            *(sa.Column(column, sa.BigInteger(), nullable=False) for column in _SUMS),
            sa.PrimaryKeyConstraint("id", name=f"pk_{name}"),
        )
    for column in ("position", "created_position"):
        op.create_index(f"ix_agents_{column}", "agents", [column])
