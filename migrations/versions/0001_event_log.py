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

#: SQLite numbers rows only in a column declared INTEGER, which holds 64 bits there.
_POSITION = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
#: PostgreSQL compares texts byte by byte, as SQLite does.
_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
#: The digest of the seed row of the webhooks' checkpoint.
_CHECKPOINT_DIGEST = "3862d8f9c0ffd13257d3103e44a9dc7e8faf5589e6bfd74673cfff4ccd4434b4"
_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "": _TEXT,
    "big": sa.BigInteger(),
    "bytes": sa.LargeBinary(),
    "int": sa.Integer(),
    "position": _POSITION,
}
#: Columns of each table. A type follows a colon; a column without one has text. ``*`` marks the
#: columns of the key, and ``?`` those that may be null.
_TABLES = {
    "events": "*position:position stream version:int type schema_version:int data event_id"
    " correlation_id ?causation_id recorded_at prev_hash hash",
    "payloads": "*digest content:bytes bytes:int",
    "log_format": "*name version:int",
    "archives": "*last_position:big first_position:big base_hash last_hash file",
    "checkpoints": "*name version:int position:big ?digest",
    "webhooks": "*id subject host position:big state ?next_at ?last_at ?owner record ?digest",
}
#: Columns of the sums of usage.
_FIGURES = (
    "completed failed cancelled expired attempts failed_attempts prompt_tokens cached_tokens"
    " completion_tokens reasoning_tokens kept_tokens hits ram_tokens disk_tokens misses_diverged"
    " misses_gone misses_model_changed missed_tokens started_jobs timed_jobs queue_us restore_us"
    " prefill_us first_token_us decode_us total_us "
).replace(" ", ":big ")
#: Tables that a rebuild fills under their names with ``_next``.
_PROJECTIONS = {
    "jobs": "*id accepted_position:big status priority model ?agent ?owner correlation_id"
    " ?idempotency ?asked ?unique_key ?unique_until ?held_until ?awaits ?due_at ?bound_model"
    " ?model_wanted_since record",
    "job_labels": "*label *accepted_position:big",
    "agents": "*id first_seen position:big created_position:big ?owner record",
    "owned_streams": "*stream owner",
    "usage_hours": f"*hour *model *agent *owner {_FIGURES}",
    "usage_totals": f"*model {_FIGURES}",
    "usage_buckets": "*model *measure *bucket:int durations:big sum_us:big",
}
#: Unique constraints, of the live tables only.
_UNIQUE = {
    "events": (("stream", "version"), ("event_id",)),
    "jobs": (("accepted_position",),),
}
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
    tables = {name: _create_table(name, described) for name, described in _TABLES.items()}
    for name, described in _PROJECTIONS.items():
        for suffix in ("", "_next"):
            _create_table(name + suffix, described)
    op.bulk_insert(tables["log_format"], [{"name": "reader_min", "version": 1}])
    first = {"name": "webhooks", "version": 1, "position": 0, "digest": _CHECKPOINT_DIGEST}
    op.bulk_insert(tables["checkpoints"], [first])
    op.create_index("ix_jobs_idempotency", "jobs", ["idempotency"], unique=True)
    op.create_index(
        "ix_jobs_held_until", "jobs", ["held_until"], sqlite_where=sa.text("held_until IS NOT NULL")
    )
    for table, *columns in _INDEXES:
        op.create_index(f"ix_{table}_{'_'.join(columns)}", table, columns)
    for trigger in _TRIGGERS[op.get_context().dialect.name]:
        op.execute(trigger)


def _create_table(name: str, described: str) -> sa.Table:
    columns: list[sa.Column[Any]] = []
    key = []
    for word in described.split():
        column, _, kind = word.lstrip("*?").partition(":")
        made = sa.Column(column, _TYPES[kind], nullable=word.startswith("?"))
        made.autoincrement = kind not in {"big", "int"} and "auto"
        columns.append(made)
        key += [column] if word.startswith("*") else []
    primary = sa.PrimaryKeyConstraint(*key, name=f"pk_{name}")
    unique = (
        sa.UniqueConstraint(*one, name=f"uq_{name}_{'_'.join(one)}")
        for one in _UNIQUE.get(name, ())
    )
    is_log = name == "events"
    return op.create_table(name, *columns, primary, *unique, sqlite_autoincrement=is_log)
