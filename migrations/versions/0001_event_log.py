"""The event log, its payloads, the jobs projection and the projections' checkpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_POSITION = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

# The triggers guard against programs other than ours, and against our own mistakes. An insert that
# would replace a row is refused before the conflict is looked at, since OR REPLACE deletes the old
# row without firing the delete trigger (unless the connection asked for recursive triggers).
_SQLITE_TRIGGERS = (
    """
    CREATE TRIGGER events_no_update BEFORE UPDATE ON events
    BEGIN
        SELECT RAISE(ABORT, 'events are append-only: UPDATE refused');
    END
    """,
    """
    CREATE TRIGGER events_no_delete BEFORE DELETE ON events
    BEGIN
        SELECT RAISE(ABORT, 'events are append-only: DELETE refused');
    END
    """,
    """
    CREATE TRIGGER events_no_replace BEFORE INSERT ON events
    WHEN NEW.position <> (SELECT coalesce(max(position), 0) + 1 FROM events)
      OR EXISTS (SELECT 1 FROM events WHERE stream = NEW.stream AND version = NEW.version)
      OR EXISTS (SELECT 1 FROM events WHERE event_id = NEW.event_id)
    BEGIN
        SELECT RAISE(ABORT, 'events are append-only: only the next new event may be inserted');
    END
    """,
)


def upgrade() -> None:
    _create_log()
    _create_jobs()
    op.create_table(
        "checkpoints",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_checkpoints"),
    )
    if op.get_context().dialect.name == "sqlite":
        for trigger in _SQLITE_TRIGGERS:
            op.execute(trigger)


def _create_log() -> None:
    op.create_table(
        "events",
        sa.Column("position", _POSITION, nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("causation_id", sa.Text(), nullable=True),
        sa.Column("recorded_at", sa.Text(), nullable=False),
        sa.Column("prev_hash", sa.Text(), nullable=False),
        sa.Column("hash", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_events"),
        sa.UniqueConstraint("stream", "version", name="uq_events_stream_version"),
        sa.UniqueConstraint("event_id", name="uq_events_event_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_type_position", "events", ["type", "position"])
    op.create_table(
        "payloads",
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("stored_at", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_payloads"),
    )


def _create_jobs() -> None:
    op.create_table(
        "jobs",
        *_job_columns(),
        sa.PrimaryKeyConstraint("id", name="pk_jobs"),
        sa.UniqueConstraint("accepted_position", name="uq_jobs_accepted_position"),
    )
    for column in ("status", "agent"):
        op.create_index(
            f"ix_jobs_{column}_accepted_position", "jobs", [column, "accepted_position"]
        )
    op.create_table(
        "jobs_next", *_job_columns(), sa.PrimaryKeyConstraint("id", name="pk_jobs_next")
    )


def _job_columns() -> list[sa.Column[object]]:
    return [
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("accepted_position", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("protocol", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("created_at", sa.Text(), nullable=False),
        sa.Column("request", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Text(), nullable=True),
        sa.Column("finished_at", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("stop_sequence", sa.Text(), nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("queued_ms", sa.Float(), nullable=False),
        sa.Column("prefill_ms", sa.Float(), nullable=False),
        sa.Column("first_token_ms", sa.Float(), nullable=False),
        sa.Column("decode_ms", sa.Float(), nullable=False),
        sa.Column("output", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("error_message", sa.Text(), nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
    ]
