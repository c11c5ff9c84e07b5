"""Moves the beginning of the log into a file, and opens a log with the events of its archives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Engine,
    and_,
    column,
    delete,
    func,
    insert,
    or_,
    select,
    table,
)

from domain.errors import CorruptLog, LogUnavailable
from domain.events.agent import AGENT_HISTORY
from domain.events.worker import LogArchived
from domain.log.record import LogHead, RecordedEvent
from domain.ports import Clock, IdSource
from domain.values import JobStatus, StreamName
from ops.data_dir.permissions import make_directory
from ops.log.archives import (
    THINNED,
    archived_stream,
    directory_of,
    each_event,
    read_anchor,
    verify_file,
    write_events,
)
from ops.log.database import (
    database_file,
    disposed,
    reader_engine,
    reading,
    writer_engine,
    writing,
)
from ops.log.migrate import refuse_newer_program
from ops.log.projections.rebuild import rebuild_turn
from ops.log.reader import LogReader
from ops.log.tables import ARCHIVES, CHECKPOINTS, EVENTS, JOBS
from ops.log.transaction import append_event

#: Position of the latest event of a job; only a log on SQLite has archives.
_POSITION = func.json_extract(JOBS.c.record, "$.position")
LOG_STREAM = StreamName("log")
#: Types of the events that make up an agent's history; they stay.
_KEPT = tuple(sorted(AGENT_HISTORY))
_SCHEMA = table("sqlite_master", column("type"), column("name"), column("sql"))
_TRIGGER = select(_SCHEMA).where(_SCHEMA.c.type == "trigger", _SCHEMA.c.name == "events_no_delete")


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """The result of archiving.

    Attributes:
        archive: The new archive; ``None`` if there was nothing to archive.
        removed: Events deleted from the log, events of earlier archives among them.
    """

    archive: LogArchived | None
    events: int
    removed: int


def archive_log(url: str, *, before: str, clock: Clock, ids: IdSource) -> Archived:
    """Archive the events recorded before an instant; safe while a service runs.

    A rebuild of the projections ends first.

    The log keeps every event of jobs that are not over, of jobs whose webhook is not yet created,
    and of streams other than jobs.

    Args:
        before: RFC 3339 instant with microseconds.

    Raises:
        CorruptLog: The events to archive do not verify; nothing has changed.
        LogUnavailable: The log is not in a SQLite file, or a file or the database cannot be read
            or written.
    """
    directory = directory_of(url)
    with disposed(reader_engine(url)) as engine:
        with reading(engine) as connection:
            anchor = read_anchor(connection)
            last = _last_before(connection, before)
        if last <= anchor.position:
            return Archived(archive=None, events=0, removed=0)
        archive = _written(engine, directory, anchor, last)
    # A rebuild reads the list of archives once, and then the table page by page.
    with rebuild_turn(url):
        removed = _remove(url, archive, clock=clock, ids=ids)
    events = archive.last_position - archive.first_position + 1
    return Archived(archive=archive, events=events, removed=removed)


def _last_before(connection: Connection, before: str) -> int:
    """Return the last position to archive; the head stays, since the next event follows it."""
    first_later = connection.execute(
        select(func.min(EVENTS.c.position)).where(EVENTS.c.recorded_at >= before)
    ).scalar_one()
    head = connection.execute(select(func.max(EVENTS.c.position))).scalar_one() or 0
    return int(min(head, first_later or head)) - 1


def _written(engine: Engine, directory: Path, anchor: LogHead, last: int) -> LogArchived:
    first = anchor.position + 1
    path = directory / f"events-{first:012d}-{last:012d}.jsonl.gz"
    make_directory(directory)
    (event,) = LogReader(engine).select(after=last - 1, limit=1)
    head = LogHead(position=last, hash=event.hash)
    if path.exists() and not _holds(path, anchor, head):
        # A restore has abandoned the log of that file; it may be the only copy of those events.
        path.replace(path.with_name(path.name + ".other"))
    if not path.exists():  # a file that a killed run left is complete
        write_events(path, LogReader(engine).walk(after=anchor.position, through=last))
        found = verify_file(path)
        if not found.holds_exactly(anchor, head):
            raise CorruptLog(first, f"{path} does not hold the events from {first} to {last}")
    return LogArchived(
        first_position=first,
        last_position=last,
        base_hash=anchor.hash,
        last_hash=event.hash,
        file=path.name,
    )


def _holds(path: Path, anchor: LogHead, head: LogHead) -> bool:
    try:
        return verify_file(path).holds_exactly(anchor, head)
    except CorruptLog:
        return False


def _remove(url: str, archive: LogArchived, *, clock: Clock, ids: IdSource) -> int:
    failure = "the log cannot be archived"
    with disposed(writer_engine(url)) as engine, writing(engine, failure) as connection:
        if read_anchor(connection).position != archive.first_position - 1:
            raise LogUnavailable("another process has archived the log meanwhile")
        # The append also brings the jobs projection, which the deletion reads, up to date.
        append_event(connection, LOG_STREAM, archive, clock=clock, ids=ids)
        connection.execute(insert(ARCHIVES).values(asdict(archive)))
        return _delete(connection, archive.last_position)


def _delete(connection: Connection, last: int) -> int:
    """Delete the archived events that are not needed; the delete trigger is off meanwhile.

    Returns:
        How many events were deleted.
    """
    trigger = connection.execute(_TRIGGER).one_or_none()
    if trigger is not None:
        connection.exec_driver_sql(f"DROP TRIGGER {trigger.name}")
    removed = connection.execute(_unneeded(last)).rowcount
    if trigger is not None:
        connection.exec_driver_sql(trigger.sql)
    return removed


def _unneeded(last: int) -> Delete:
    """Return the deletion of what no reader of the log needs up to a position."""
    events, other = EVENTS.c, EVENTS.alias().c
    open_states = [status.value for status in JobStatus if not status.is_terminal]
    over = select(JOBS.c.id).where(
        last >= _POSITION, JOBS.c.status.not_in(open_states), ~_has_unsent_webhook()
    )
    # The last event of each type, by a second name of the table.
    latest = (
        select(func.max(other.position))
        .where(_is_thinned(other.stream))
        .group_by(other.stream, other.type)
    )
    repeated = and_(
        _is_thinned(events.stream), events.type.not_in(_KEPT), events.position.not_in(latest)
    )
    return delete(EVENTS).where(events.position <= last, or_(events.stream.in_(over), repeated))


def _is_thinned(stream: ColumnElement[str]) -> ColumnElement[bool]:
    # LIKE would ignore case.
    return or_(*(stream.op("GLOB")(f"{prefix}*") for prefix in THINNED))


def _has_unsent_webhook() -> ColumnElement[bool]:
    """Whether a job's webhook is still to be made of the job's events."""
    read = select(func.coalesce(func.max(CHECKPOINTS.c.position), 0)).where(
        CHECKPOINTS.c.name == "webhooks"
    )
    receiver = func.json_extract(JOBS.c.record, "$.submitted.webhook")
    return and_(read.scalar_subquery() < _POSITION, receiver.is_not(None))


class AsOfLog(LogReader):
    """A log reader that also finds archived streams; a service may write to the log meanwhile.

    Args:
        url: Of the log, beside which its archives lie.
    """

    def __init__(self, engine: Engine, url: str) -> None:
        super().__init__(engine)
        self._url = url

    def each(self) -> Iterator[RecordedEvent]:
        """Yield every event from the first on, also those of the archives."""
        return each_event(self._engine, self._url)

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.load``; an archived stream is read from the archives that are present."""
        stored = super().load(stream, after_version=after_version)
        if stored:
            return stored
        archived = archived_stream(self._engine, self._url, stream)
        return tuple(event for event in archived if event.version > after_version)


@contextmanager
def open_as_of(url: str) -> Iterator[AsOfLog]:
    """Open an existing log.

    Raises:
        LogNewer: A newer program has written to the log.
        LogUnavailable: There is no log at ``url``.
    """
    file = database_file(url)
    if file is not None and not file.exists():
        raise LogUnavailable(f"there is no event log at {file}")
    refuse_newer_program(url)
    with disposed(reader_engine(url)) as engine:
        yield AsOfLog(engine, url)
