"""The event log, its payloads, the jobs projection and the projections' checkpoints."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ops.adapters.event_log.tables import POSITION_TYPE, TEXT

revision = "0001"
down_revision = None

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
_REFUSE = """
CREATE FUNCTION refuse_change_of_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'events are append-only: % refused', TG_OP USING ERRCODE = '23001';
END
$$
"""
_REFUSE_ALL_BUT_THE_NEXT = """
CREATE FUNCTION refuse_all_but_the_next_event() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.position <> (SELECT coalesce(max(position), 0) + 1 FROM events) THEN
        RAISE EXCEPTION 'events are append-only: only the next new event may be inserted'
            USING ERRCODE = '23001';
    END IF;
    RETURN NEW;
END
$$
"""
# The unique constraints refuse a second event of one version or id; ON CONFLICT can only do nothing
# or an update, which is refused.
_POSTGRES_TRIGGERS = (
    _REFUSE,
    _REFUSE_ALL_BUT_THE_NEXT,
    """
    CREATE TRIGGER events_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON events
    FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_events()
    """,
    """
    CREATE TRIGGER events_no_gap BEFORE INSERT ON events
    FOR EACH ROW EXECUTE FUNCTION refuse_all_but_the_next_event()
    """,
)
_TRIGGERS = {"sqlite": _SQLITE_TRIGGERS, "postgresql": _POSTGRES_TRIGGERS}


def upgrade() -> None:
    _create_log()
    _create_jobs()
    op.create_table(
        "checkpoints",
        sa.Column("name", TEXT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_checkpoints"),
    )
    for trigger in _TRIGGERS[op.get_context().dialect.name]:
        op.execute(trigger)


def _create_log() -> None:
    op.create_table(
        "events",
        sa.Column("position", POSITION_TYPE, nullable=False),
        sa.Column("stream", TEXT, nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("type", TEXT, nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.Column("data", TEXT, nullable=False),
        sa.Column("event_id", TEXT, nullable=False),
        sa.Column("correlation_id", TEXT, nullable=False),
        sa.Column("causation_id", TEXT, nullable=True),
        sa.Column("recorded_at", TEXT, nullable=False),
        sa.Column("prev_hash", TEXT, nullable=False),
        sa.Column("hash", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("position", name="pk_events"),
        sa.UniqueConstraint("stream", "version", name="uq_events_stream_version"),
        sa.UniqueConstraint("event_id", name="uq_events_event_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_type_position", "events", ["type", "position"])
    op.create_table(
        "payloads",
        sa.Column("digest", TEXT, nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("stored_at", TEXT, nullable=False),
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
        sa.Column("id", TEXT, nullable=False),
        sa.Column("accepted_position", sa.BigInteger(), nullable=False),
        sa.Column("status", TEXT, nullable=False),
        sa.Column("protocol", TEXT, nullable=False),
        sa.Column("model", TEXT, nullable=False),
        sa.Column("priority", TEXT, nullable=False),
        sa.Column("agent", TEXT, nullable=True),
        sa.Column("correlation_id", TEXT, nullable=False),
        sa.Column("created_at", TEXT, nullable=False),
        sa.Column("request", TEXT, nullable=False),
        sa.Column("started_at", TEXT, nullable=True),
        sa.Column("finished_at", TEXT, nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("stop_reason", TEXT, nullable=True),
        sa.Column("stop_sequence", TEXT, nullable=True),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("completion_tokens", sa.Integer(), nullable=False),
        sa.Column("queued_ms", sa.Float(), nullable=False),
        sa.Column("prefill_ms", sa.Float(), nullable=False),
        sa.Column("first_token_ms", sa.Float(), nullable=False),
        sa.Column("decode_ms", sa.Float(), nullable=False),
        sa.Column("output", TEXT, nullable=True),
        sa.Column("error", TEXT, nullable=True),
        sa.Column("error_message", TEXT, nullable=True),
        sa.Column("position", sa.BigInteger(), nullable=False),
    ]
