"""Moves the beginning of the log into a file; what is still needed of it stays.

The file is whole and verified before one transaction removes its events from the table, so a kill
leaves either nothing done or all of it. The log itself says in an event that it did so, which
anchors the rest of the chain.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, func, insert, select
from sqlalchemy.exc import SQLAlchemyError

from domain.errors import CorruptLog, LogUnavailable
from domain.events.agent import AGENT_HISTORY
from domain.log.record import Draft, EventFilter, LogHead
from domain.ports import Clock, IdSource
from domain.values import JobStatus, StreamName
from ops.adapters.event_log.archives import Archive, directory_of, read_anchor
from ops.adapters.event_log.database import reader_engine, reason_of, writer_engine
from ops.adapters.event_log.event_file import verify_file, write_events
from ops.adapters.event_log.event_query import EventQuery
from ops.adapters.event_log.reader import LogReader, reading
from ops.adapters.event_log.row_codec import instant
from ops.adapters.event_log.tables import ARCHIVES, EVENTS
from ops.adapters.event_log.transaction import Append, LogTransaction

LOG_STREAM = StreamName("log")
#: Streams of which only the last event of each type is still needed; the streams of other things
#: than jobs stay whole, and so does what makes the history of an agent.
_THINNED = ("agent-", "worker-", "model-")
#: Of agents that keep their own history, what makes it stays.
_KEPT = tuple(sorted(AGENT_HISTORY))
_TRIGGER = "events_no_delete"
#: A job whose receiver was not told of its end yet: the message is made of its events.
_UNTOLD = (
    "position > (SELECT coalesce(max(position), 0) FROM checkpoints WHERE name = 'webhooks')"
    " AND EXISTS (SELECT 1 FROM events AS first WHERE first.stream = jobs.id"
    " AND first.version = 1 AND json_extract(first.data, '$.webhook') IS NOT NULL)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived:
    """What was done.

    Attributes:
        archive: The stretch and its file; ``None`` if there was nothing to archive.
        events: Events of the file.
        removed: Events that left the log; older stretches may have kept some of them until now.
    """

    archive: Archive | None
    events: int
    removed: int


def archive_log(url: str, *, before: str, clock: Clock, ids: IdSource) -> Archived:
    """Archive the events recorded before an instant; the service may go on meanwhile.

    Jobs that are not over by then stay whole in the log, and so does what is not a job's; so do
    those whose webhook has not been made of their events yet.

    Args:
        url: Of the log.
        before: RFC 3339 instant with microseconds.
        clock: Stamps the event that says so.
        ids: Names that event.

    Raises:
        CorruptLog: What is to be archived does not verify; nothing was done.
        LogUnavailable: The log is no SQLite file, or something cannot be read or written.
    """
    directory = directory_of(url)
    engine = reader_engine(url)
    try:
        with reading(engine) as connection:
            anchor = read_anchor(connection)
            last = _last_before(connection, before)
        if last <= anchor.position:
            return Archived(archive=None, events=0, removed=0)
        archive = _written(engine, directory, anchor, last)
    finally:
        engine.dispose()
    removed = _remove(url, archive, clock=clock, ids=ids)
    events = archive.last_position - archive.first_position + 1
    return Archived(archive=archive, events=events, removed=removed)


def _last_before(connection: Connection, before: str) -> int:
    """Return the last position to archive; the last event of all stays, as the next follows it."""
    first_later = connection.execute(
        select(func.min(EVENTS.c.position)).where(EVENTS.c.recorded_at >= before)
    ).scalar_one()
    head = connection.execute(select(func.max(EVENTS.c.position))).scalar_one() or 0
    return int(min(head, first_later or head)) - 1


def _written(engine: Engine, directory: Path, anchor: LogHead, last: int) -> Archive:
    first = anchor.position + 1
    path = directory / f"events-{first:012d}-{last:012d}.jsonl.gz"
    directory.mkdir(mode=0o700, exist_ok=True)
    (event,) = LogReader(engine).read_all(after=last - 1, limit=1)
    head = LogHead(position=last, hash=event.hash)
    if path.exists() and not _holds(path, anchor, head):
        # Of a log that a restore has given up; it may be all that is left of that one.
        path.replace(path.with_name(path.name + ".other"))
    if not path.exists():  # one that a kill left behind is whole
        events = EventQuery(engine, EventFilter()).each(
            after=anchor.position, limit=last - anchor.position
        )
        write_events(path, events)
        found = verify_file(path)
        if (found.base, found.head, found.gaps) != (anchor, head, 0):
            raise CorruptLog(first, f"{path} does not hold the events from {first} to {last}")
    return Archive(
        first_position=first,
        last_position=last,
        base_hash=anchor.hash,
        last_hash=event.hash,
        file=path.name,
    )


def _holds(path: Path, anchor: LogHead, head: LogHead) -> bool:
    try:
        found = verify_file(path)
    except CorruptLog:
        return False
    return (found.base, found.head, found.gaps) == (anchor, head, 0)


def _remove(url: str, archive: Archive, *, clock: Clock, ids: IdSource) -> int:
    engine = writer_engine(url)
    try:
        with engine.begin() as connection:
            if read_anchor(connection).position != archive.first_position - 1:
                msg = "somebody else has archived the log meanwhile"
                raise LogUnavailable(msg)
            # It also brings the projections abreast, which say what jobs are over.
            _append(connection, archive, clock=clock, ids=ids)
            connection.execute(insert(ARCHIVES).values(asdict(archive)))
            return _delete(connection, archive.last_position)
    except SQLAlchemyError as error:
        msg = f"the log cannot be archived: {reason_of(error)}"
        raise LogUnavailable(msg) from error
    finally:
        engine.dispose()


def _append(connection: Connection, archive: Archive, *, clock: Clock, ids: IdSource) -> None:
    version = connection.execute(
        select(func.max(EVENTS.c.version)).where(EVENTS.c.stream == LOG_STREAM)
    ).scalar_one()
    event_id = ids.event_id()
    request = Append(
        stream=LOG_STREAM,
        drafts=(Draft(event_id=event_id, event=archive.event(), correlation_id=event_id),),
        expected_version=version or 0,
    )
    transaction = LogTransaction(connection, [request], now=lambda: instant(clock.now()))
    transaction.append(request)
    transaction.write()


def _delete(connection: Connection, last: int) -> int:
    """Remove what is archived and not needed; the guard against that is away for as long."""
    guard = connection.exec_driver_sql(
        "SELECT sql FROM sqlite_master WHERE type = 'trigger' AND name = ?", (_TRIGGER,)
    ).scalar_one_or_none()
    if guard is not None:
        connection.exec_driver_sql(f"DROP TRIGGER {_TRIGGER}")
    open_states = [status.value for status in JobStatus if not status.is_terminal]
    marks = ", ".join("?" for _ in open_states)
    thinned = " OR ".join("stream GLOB ?" for _ in _THINNED)
    kept = ", ".join("?" for _ in _KEPT)
    globs = tuple(f"{prefix}*" for prefix in _THINNED)
    removed = connection.exec_driver_sql(
        "DELETE FROM events WHERE position <= ? AND ("  # noqa: S608 - only marks are put in
        f" stream IN (SELECT id FROM jobs WHERE position <= ? AND status NOT IN ({marks})"
        f" AND NOT ({_UNTOLD}))"
        f" OR (({thinned}) AND type NOT IN ({kept}) AND position NOT IN"
        f" (SELECT max(position) FROM events WHERE {thinned} GROUP BY stream, type)))",
        (last, last, *open_states, *globs, *_KEPT, *globs),
    ).rowcount
    if guard is not None:
        connection.exec_driver_sql(guard)
    return removed
