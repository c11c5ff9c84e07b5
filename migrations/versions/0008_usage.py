"""Sums and histograms of ended jobs; opening the log fills them from its events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.tables import TEXT

revision = "0008"
down_revision = "0007"

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
    for suffix in ("", "_next"):
        _create_sums(f"usage_hours{suffix}", "hour", "model", "agent")
        _create_sums(f"usage_totals{suffix}", "model")
        op.create_table(
            f"usage_buckets{suffix}",
            sa.Column("model", TEXT, nullable=False),
            sa.Column("measure", TEXT, nullable=False),
            sa.Column("bucket", sa.Integer(), nullable=False),
            sa.Column("durations", sa.BigInteger(), nullable=False),
            sa.Column("sum_us", sa.BigInteger(), nullable=False),
            sa.PrimaryKeyConstraint("model", "measure", "bucket", name=f"pk_usage_buckets{suffix}"),
        )


def _create_sums(name: str, *keys: str) -> None:
    op.create_table(
        name,
        *(sa.Column(key, TEXT, nullable=False) for key in keys),
        *(sa.Column(figure, sa.BigInteger(), nullable=False) for figure in _FIGURES),
        sa.PrimaryKeyConstraint(*keys, name=f"pk_{name}"),
    )
