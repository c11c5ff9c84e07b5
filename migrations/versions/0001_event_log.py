"""The event log, its payloads and archives, its projections and their checkpoints, and webhooks.

The tables are written out and frozen: a later change of the declarations in
``ops.log.tables`` is a revision of its own.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_Column = sa.Column[Any]

#: SQLite numbers rows only in a column declared INTEGER, which holds 64 bits there.
_POSITION = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
#: PostgreSQL compares texts byte by byte, as SQLite does.
_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
#: The digest of the seed row of the webhooks' checkpoint.
_CHECKPOINT_DIGEST = "3862d8f9c0ffd13257d3103e44a9dc7e8faf5589e6bfd74673cfff4ccd4434b4"
#: Columns of the sums of usage.
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
_INDEXES = (
    ("events", "type", "position"),
    ("jobs", "status", "accepted_position"),
    ("jobs", "agent", "accepted_position"),
    ("jobs", "correlation_id", "status", "id"),
    ("jobs", "asked", "accepted_position"),
    ("jobs", "unique_key", "unique_until"),
    ("jobs", "owner", "accepted_position"),
    ("agents", "position"),
    ("agents", "created_position"),
    ("agents", "owner", "position"),
    ("owned_streams", "owner"),
    ("webhooks", "state", "next_at"),
    ("webhooks", "host", "state", "next_at"),
    ("webhooks", "subject", "position"),
    ("webhooks", "position", "id"),
    ("webhooks", "owner", "position"),
)

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
    _create_jobs("jobs", sa.UniqueConstraint("accepted_position", name="uq_jobs_accepted_position"))
    _create_jobs("jobs_next")
    for suffix in ("", "_next"):  # a rebuild fills the tables with the suffix
        labels = [_text("label"), _big("accepted_position")]
        _create_table(f"job_labels{suffix}", labels, ["label", "accepted_position"])
        _create_agents(f"agents{suffix}")
        owned = [_text("stream"), _text("owner")]
        _create_table(f"owned_streams{suffix}", owned, ["stream"])
        _create_usage(suffix)
    _create_webhooks()
    op.create_index("ix_jobs_idempotency", "jobs", ["idempotency"], unique=True)
    op.create_index(
        "ix_jobs_held_until", "jobs", ["held_until"], sqlite_where=sa.text("held_until IS NOT NULL")
    )
    for table, *columns in _INDEXES:
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)
    for trigger in _TRIGGERS[op.get_context().dialect.name]:
        op.execute(trigger)


def _create_log() -> None:
    _create_table(
        "events",
        [
            sa.Column("position", _POSITION, nullable=False),
            _text("stream"),
            _int("version"),
            _text("type"),
            _int("schema_version"),
            _text("data"),
            _text("event_id"),
            _text("correlation_id"),
            _text("causation_id", null=True),
            _text("recorded_at"),
            _text("prev_hash"),
            _text("hash"),
        ],
        ["position"],
        sa.UniqueConstraint("stream", "version", name="uq_events_stream_version"),
        sa.UniqueConstraint("event_id", name="uq_events_event_id"),
        sqlite_autoincrement=True,
    )
    _create_table("payloads", [_text("digest"), _bytes("content"), _int("bytes")], ["digest"])
    formats = _create_table("log_format", [_text("name"), _int("version")], ["name"])
    op.bulk_insert(formats, [{"name": "reader_min", "version": 1}])
    _create_table(
        "archives",
        [
            _big("last_position"),
            _big("first_position"),
            _text("base_hash"),
            _text("last_hash"),
            _text("file"),
        ],
        ["last_position"],
    )
    checkpoints = _create_table(
        "checkpoints",
        [_text("name"), _int("version"), _big("position"), _text("digest", null=True)],
        ["name"],
    )
    first = {"name": "webhooks", "version": 1, "position": 0, "digest": _CHECKPOINT_DIGEST}
    op.bulk_insert(checkpoints, [first])


def _create_jobs(name: str, *constraints: sa.Constraint) -> None:
    _create_table(
        name,
        [
            _text("id"),
            _big("accepted_position"),
            _text("status"),
            _text("priority"),
            _text("model"),
            _text("agent", null=True),
            _text("owner", null=True),
            _text("correlation_id"),
            _text("idempotency", null=True),
            _text("asked", null=True),
            _text("unique_key", null=True),
            _text("unique_until", null=True),
            _text("held_until", null=True),
            _text("awaits", null=True),
            _text("due_at", null=True),
            _text("bound_model", null=True),
            _text("model_wanted_since", null=True),
            _text("record"),
        ],
        ["id"],
        *constraints,
    )


def _create_agents(name: str) -> None:
    _create_table(
        name,
        [
            _text("id"),
            _text("first_seen"),
            _big("position"),
            _big("created_position"),
            _text("owner", null=True),
            _text("record"),
        ],
        ["id"],
    )


def _create_webhooks() -> None:
    _create_table(
        "webhooks",
        [
            _text("id"),
            _text("subject"),
            _text("host"),
            _big("position"),
            _text("state"),
            _text("next_at", null=True),
            _text("last_at", null=True),
            _text("owner", null=True),
            _text("record"),
            _text("digest", null=True),
        ],
        ["id"],
    )


def _create_usage(suffix: str) -> None:
    for name, key in (
        ("usage_hours", ["hour", "model", "agent", "owner"]),
        ("usage_totals", ["model"]),
    ):
        columns = [*map(_text, key), *map(_big, _FIGURES)]
        _create_table(f"{name}{suffix}", columns, key)
    _create_table(
        f"usage_buckets{suffix}",
        [_text("model"), _text("measure"), _int("bucket"), _big("durations"), _big("sum_us")],
        ["model", "measure", "bucket"],
    )


def _create_table(
    name: str,
    columns: list[_Column],
    key: list[str],
    *constraints: sa.Constraint,
    sqlite_autoincrement: bool = False,
) -> sa.Table:
    primary = sa.PrimaryKeyConstraint(*key, name=f"pk_{name}")
    return op.create_table(
        name, *columns, primary, *constraints, sqlite_autoincrement=sqlite_autoincrement
    )


def _text(name: str, *, null: bool = False) -> _Column:
    return sa.Column(name, _TEXT, nullable=null)


def _int(name: str, *, null: bool = False) -> _Column:
    return sa.Column(name, sa.Integer(), nullable=null, autoincrement=False)


def _big(name: str) -> _Column:
    return sa.Column(name, sa.BigInteger(), nullable=False, autoincrement=False)


def _bytes(name: str) -> _Column:
    return sa.Column(name, sa.LargeBinary(), nullable=False)
