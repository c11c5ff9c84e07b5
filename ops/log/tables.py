"""The tables of the event log, in column types for SQLite and PostgreSQL.

``migrations/versions`` creates them; a test compares the result with these declarations.
"""

from __future__ import annotations

from typing import ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    text,
)
from sqlalchemy import UniqueConstraint as Unique
from sqlmodel import Field, SQLModel

from domain.usage.figures import FIGURES

#: Constraints get the same names in both databases, so that migrations can refer to them.
METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)
#: SQLite numbers rows only in a column declared INTEGER, which holds 64 bits there.
POSITION_TYPE = BigInteger().with_variant(Integer(), "sqlite")


class _ServerText(TypeDecorator[str]):
    r"""Text on PostgreSQL, compared byte by byte as on SQLite, so that ids sort by age.

    PostgreSQL cannot store a NUL character; it is stored as ``\x00``.
    """

    impl = Text
    cache_ok = True

    def __init__(self) -> None:
        super().__init__(collation="C")

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        del dialect
        return value.replace("\0", "\\x00") if value and "\0" in value else value


TEXT = Text().with_variant(_ServerText(), "postgresql")


class _Base(SQLModel):
    metadata: ClassVar[MetaData] = METADATA


class EventRow(_Base, table=True):
    """One event; triggers refuse to change or delete the row.

    ``data`` is canonical JSON; a lone surrogate is stored as its JSON escape.
    """

    __tablename__ = "events"
    __table_args__ = (
        Unique("stream", "version"),
        Unique("event_id"),
        Index(None, "type", "position"),
        # AUTOINCREMENT: SQLite never assigns the position of a lost row again.
        {"sqlite_autoincrement": True},
    )

    position: int | None = Field(default=None, primary_key=True, sa_type=POSITION_TYPE)
    stream: str = Field(sa_type=TEXT)
    version: int
    type: str = Field(sa_type=TEXT)
    schema_version: int
    data: str = Field(sa_type=TEXT)
    event_id: str = Field(sa_type=TEXT)
    correlation_id: str = Field(sa_type=TEXT)
    causation_id: str | None = Field(default=None, sa_type=TEXT)
    recorded_at: str = Field(sa_type=TEXT)
    prev_hash: str = Field(sa_type=TEXT)
    hash: str = Field(sa_type=TEXT)


class PayloadRow(_Base, table=True):
    """Bytes by their digest; they may be erased, since the chain verifies without them."""

    __tablename__ = "payloads"

    digest: str = Field(primary_key=True, sa_type=TEXT)
    content: bytes = Field(sa_type=LargeBinary)
    bytes: int


class JobRow(_Base, table=True):
    """The jobs projection: a ``Job`` as JSON, and a copy of what queries filter on.

    A field that no query filters on needs no column.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        Unique("accepted_position"),
        Index(None, "status", "accepted_position"),
        Index(None, "agent", "accepted_position"),
        Index(None, "correlation_id", "status", "id"),
        # At most one job of each key; jobs without a key are exempt.
        Index(None, "idempotency", unique=True),
        Index(None, "asked", "accepted_position"),
        Index(None, "unique_key", "unique_until"),
        Index(None, "owner", "accepted_position"),
        # Few jobs are held: the index costs the others nothing.
        Index(None, "held_until", sqlite_where=text("held_until IS NOT NULL")),
    )

    id: str = Field(primary_key=True, sa_type=TEXT)
    accepted_position: int = Field(sa_type=BigInteger)
    status: str = Field(sa_type=TEXT)
    priority: str = Field(sa_type=TEXT)
    model: str = Field(sa_type=TEXT)
    agent: str | None = Field(default=None, sa_type=TEXT)
    owner: str | None = Field(default=None, sa_type=TEXT)
    correlation_id: str = Field(sa_type=TEXT)
    idempotency: str | None = Field(default=None, sa_type=TEXT)
    asked: str | None = Field(default=None, sa_type=TEXT)
    unique_key: str | None = Field(default=None, sa_type=TEXT)
    unique_until: str | None = Field(default=None, sa_type=TEXT)
    held_until: str | None = Field(default=None, sa_type=TEXT)
    awaits: str | None = Field(default=None, sa_type=TEXT)
    due_at: str | None = Field(default=None, sa_type=TEXT)
    bound_model: str | None = Field(default=None, sa_type=TEXT)
    model_wanted_since: str | None = Field(default=None, sa_type=TEXT)
    record: str = Field(sa_type=TEXT)


class JobLabelRow(_Base, table=True):
    """A label of a job, by which lists find it."""

    __tablename__ = "job_labels"

    label: str = Field(primary_key=True, sa_type=TEXT)
    accepted_position: int = Field(
        primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False}
    )


class AgentRow(_Base, table=True):
    """The agents projection: an ``Agent`` as JSON, and a copy of what queries filter on."""

    __tablename__ = "agents"
    __table_args__ = (
        Index(None, "position"),
        Index(None, "created_position"),
        Index(None, "owner", "position"),
    )

    id: str = Field(primary_key=True, sa_type=TEXT)
    first_seen: str = Field(sa_type=TEXT)
    position: int = Field(sa_type=BigInteger)
    created_position: int = Field(sa_type=BigInteger)
    owner: str | None = Field(default=None, sa_type=TEXT)
    record: str = Field(sa_type=TEXT)


class OwnedStreamRow(_Base, table=True):
    """The API key that made a file or a batch; those of jobs and agents stand in their rows."""

    __tablename__ = "owned_streams"
    __table_args__ = (Index(None, "owner"),)

    stream: str = Field(primary_key=True, sa_type=TEXT)
    owner: str = Field(sa_type=TEXT)


class CheckpointRow(_Base, table=True):
    """The last position that a projection has read, and the version of its code.

    ``digest`` is the ``row_digest`` of the row of the webhooks, which no fold can verify.
    """

    __tablename__ = "checkpoints"

    name: str = Field(primary_key=True, sa_type=TEXT)
    version: int
    position: int = Field(sa_type=BigInteger)
    digest: str | None = Field(default=None, sa_type=TEXT)


class LogFormatRow(_Base, table=True):
    """A version that readers of the log need; see ``log_format``."""

    __tablename__ = "log_format"

    name: str = Field(primary_key=True, sa_type=TEXT)
    version: int


class ArchiveRow(_Base, table=True):
    """A file with a stretch of the log; only needed events of it stay in ``events``."""

    __tablename__ = "archives"

    last_position: int = Field(
        primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False}
    )
    first_position: int = Field(sa_type=BigInteger)
    base_hash: str = Field(sa_type=TEXT)
    last_hash: str = Field(sa_type=TEXT)
    file: str = Field(sa_type=TEXT)


class WebhookRow(_Base, table=True):
    """A message about the end of a job or batch to one receiver, and its delivery state.

    ``record`` is the ``Webhook`` as JSON; the other columns repeat what queries filter on, and
    ``digest`` is the ``row_digest`` of the row.
    """

    __tablename__ = "webhooks"
    __table_args__ = (
        Index(None, "state", "next_at"),
        Index(None, "host", "state", "next_at"),
        Index(None, "subject", "position"),
        Index(None, "position", "id"),
        Index(None, "owner", "position"),
    )

    id: str = Field(primary_key=True, sa_type=TEXT)
    subject: str = Field(sa_type=TEXT)
    host: str = Field(sa_type=TEXT)
    position: int = Field(sa_type=BigInteger)
    state: str = Field(sa_type=TEXT)
    next_at: str | None = Field(default=None, sa_type=TEXT)
    last_at: str | None = Field(default=None, sa_type=TEXT)
    owner: str | None = Field(default=None, sa_type=TEXT)
    record: str = Field(sa_type=TEXT)
    digest: str | None = Field(default=None, sa_type=TEXT)


def _sums(name: str, *keys: str) -> Table:
    """Return a table with the columns of ``UsageFigures``; durations are in microseconds."""
    return Table(
        name,
        METADATA,
        *(Column(key, TEXT, primary_key=True) for key in keys),
        *(Column(figure, BigInteger, nullable=False) for figure in FIGURES),
    )


def _buckets(name: str) -> Table:
    """Return a table with the filled buckets of ``domain.usage.figures``."""
    return Table(
        name,
        METADATA,
        Column("model", TEXT, primary_key=True),
        Column("measure", TEXT, primary_key=True),
        Column("bucket", Integer, primary_key=True),
        Column("durations", BigInteger, nullable=False),
        Column("sum_us", BigInteger, nullable=False),
    )


def _next(table: Table) -> Table:
    """Return the table that a rebuild of a projection fills; it needs no index."""
    columns = (
        Column(one.name, one.type, primary_key=one.primary_key, nullable=one.nullable)
        for one in table.columns
    )
    return Table(f"{table.name}_next", METADATA, *columns)


#: The usage projection, by hour and since the log began. A missing model or agent is ``""``.
USAGE_HOURS = _sums("usage_hours", "hour", "model", "agent", "owner")
USAGE_TOTALS = _sums("usage_totals", "model")
USAGE_BUCKETS = _buckets("usage_buckets")

EVENTS: Table = METADATA.tables["events"]
PAYLOADS: Table = METADATA.tables["payloads"]
JOBS: Table = METADATA.tables["jobs"]
JOB_LABELS: Table = METADATA.tables["job_labels"]
AGENTS: Table = METADATA.tables["agents"]
OWNED_STREAMS: Table = METADATA.tables["owned_streams"]
CHECKPOINTS: Table = METADATA.tables["checkpoints"]
LOG_FORMAT: Table = METADATA.tables["log_format"]
ARCHIVES: Table = METADATA.tables["archives"]
WEBHOOKS: Table = METADATA.tables["webhooks"]

#: The tables that are derived from the events, and those that a rebuild fills.
PROJECTIONS = (JOBS, JOB_LABELS, AGENTS, OWNED_STREAMS, USAGE_HOURS, USAGE_TOTALS, USAGE_BUCKETS)
NEXT_PROJECTIONS = tuple(map(_next, PROJECTIONS))
NEXT_JOBS = NEXT_PROJECTIONS[0]
