"""Archives of a log: files of events, their list, their verification, and reads across them."""

from __future__ import annotations

import dataclasses
import gzip
import io
import itertools
import json
import logging
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection, Engine, func, select

from domain.errors import CorruptLog, LogUnavailable
from domain.events.agent import AGENT_HISTORY
from domain.events.worker import ArchiveErased, LogArchived
from domain.job.state import is_job_event
from domain.log.record import (
    GENESIS_HASH,
    EventFilter,
    LogHead,
    RecordedEvent,
    reader_needed,
    verify_link,
)
from domain.values import JobStatus, StreamName
from ops.data_dir.permissions import sync_directory
from ops.log.database import database_file, reading, unavailable
from ops.log.reader import PAGE_EVENTS, LogReader
from ops.log.row_codec import with_texts
from ops.log.tables import ARCHIVES, EVENTS, JOBS

#: Longest line that is read; events are small, since their texts are payloads.
LINE_CHARS_MAX = 16 * 1024 * 1024
_GZIP_LEVEL = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedFile:
    """The extent of a file that verifies.

    Attributes:
        base: Position and hash before the first event; ``None`` for an empty file.
        head: Position and hash of the last event; ``None`` for an empty file.
        gaps: How often positions are missing between two events. A file with gaps shows that each
            event is unchanged, but not that the file is complete.
    """

    events: int
    base: LogHead | None
    head: LogHead | None
    gaps: int

    def holds_exactly(self, base: LogHead, head: LogHead) -> bool:
        """Whether the file holds every event above ``base`` up to ``head``, and no other."""
        return (self.base, self.head, self.gaps) == (base, head, 0)


def event_line(event: RecordedEvent) -> str:
    """Return an event as a line of ASCII."""
    return (
        json.dumps(event.envelope(), sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"
    )


def write_events(path: Path, events: Iterable[RecordedEvent]) -> int:
    """Write events to a new file, which appears under its name only when complete.

    Returns:
        How many events were written.

    Raises:
        LogUnavailable: The file exists already, or cannot be written.
    """
    if path.exists():
        raise LogUnavailable(f"{path} exists already")
    draft = path.with_name(path.name + ".part")
    with unavailable(f"{path} cannot be written", OSError):
        with draft.open("wb") as file:
            count = _write(file, events, compressed=path.suffix == ".gz")
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        sync_directory(path.parent)
    return count


def read_events(path: Path) -> Iterator[RecordedEvent]:
    """Yield the events of a file.

    Raises:
        CorruptLog: A line is not an event; the position is that of the expected event.
    """
    expected = 1
    try:
        with path.open("rb") as file:
            stream = gzip.GzipFile(fileobj=file) if path.suffix == ".gz" else file
            with io.TextIOWrapper(stream, encoding="utf-8", newline="\n") as lines:
                while line := lines.readline(LINE_CHARS_MAX):
                    event = _event(line, expected)
                    expected = event.position + 1
                    yield event
    except (gzip.BadGzipFile, zlib.error, EOFError, UnicodeDecodeError) as error:
        raise CorruptLog(expected, f"the file is damaged: {error}") from error
    except OSError as error:
        raise LogUnavailable(f"{path} cannot be read: {error}") from error


def verify_file(path: Path, *, signed_hashes: Mapping[int, str] | None = None) -> VerifiedFile:
    """Verify every event of a file, and the links between neighbouring positions.

    Args:
        signed_hashes: By position, from signed checkpoints; positions outside the file are ignored.

    Raises:
        CorruptLog: Naming the first position that does not verify.
    """
    signed = signed_hashes or {}
    base: LogHead | None = None
    head: LogHead | None = None
    count = gaps = 0
    for event in read_events(path):
        if head is None:
            head = base = _before(event)
        elif event.position > head.position + 1:
            gaps += 1
            head = _before(event)
        head = _linked(event, head)
        if signed.get(head.position, head.hash) != head.hash:
            raise CorruptLog(head.position, "another event stood here when the head was signed")
        count += 1
    return VerifiedFile(events=count, base=base, head=head, gaps=gaps)


def _linked(event: RecordedEvent, before: LogHead) -> LogHead:
    try:
        return verify_link(event, before)
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptLog(event.position, f"the content cannot be hashed: {error}") from error


def _before(event: RecordedEvent) -> LogHead:
    """Return the position and hash that an event names as its predecessor."""
    hash_ = GENESIS_HASH if event.position == 1 else event.prev_hash
    return LogHead(position=event.position - 1, hash=hash_)


def _write(file: BinaryIO, events: Iterable[RecordedEvent], *, compressed: bool) -> int:
    count = 0
    # Without a name and a time in the header, the same events give the same bytes.
    packed = gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) if compressed else None
    for event in events:
        (packed or file).write(event_line(event).encode("ascii"))
        count += 1
    if packed is not None:
        packed.close()
    return count


def _event(line: str, expected: int) -> RecordedEvent:
    try:
        fields = json.loads(line)
        event = RecordedEvent(**fields)
    except (TypeError, ValueError, RecursionError) as error:
        raise CorruptLog(expected, "a line is no event") from error
    if type(event.position) is not int or not isinstance(event.stream, str):
        raise CorruptLog(expected, "a line is no event")
    return dataclasses.replace(event, stream=StreamName(event.stream))


#: Name of the archives' directory, beside the database.
DIRECTORY = "archive"

#: Prefixes of streams of which only the last event of each type is needed; other streams that are
#: not jobs stay complete, and so does the history of an agent.
THINNED = ("agent-", "worker-", "model-")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveReport:
    """The result of verifying the archives.

    Attributes:
        missing: Names of files that are missing; their events could not be verified.
        erased: How many files retention has erased.
        reader_needed: Least reader version of the events in the files that verify.
    """

    verified: int
    missing: tuple[str, ...]
    erased: int = 0
    reader_needed: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether every archived event could be read."""
        return not self.missing and not self.erased


def directory_of(url: str) -> Path:
    """Return the directory of the archives of a log.

    Raises:
        LogUnavailable: The log is not in a SQLite file.
    """
    file = database_file(url)
    if file is None:
        msg = (
            "only a log in a SQLite file has archives; PostgreSQL holds the whole log: "
            "`semantic log ls --export` copies it out"
        )
        raise LogUnavailable(msg)
    return file.parent / DIRECTORY


def archive_path(url: str, archive: LogArchived) -> Path:
    """Return the path of an archive's file, which may have been moved away.

    Raises:
        CorruptLog: The log names a file outside the directory of the archives.
    """
    if Path(archive.file).name != archive.file:
        msg = f"the archive {archive.file!a} is not in {DIRECTORY}"
        raise CorruptLog(archive.first_position, msg)
    return directory_of(url) / archive.file


def read_archives(connection: Connection) -> tuple[LogArchived, ...]:
    """Return the archives of the log, in order."""
    rows = connection.execute(select(ARCHIVES).order_by(ARCHIVES.c.last_position))
    return tuple(LogArchived(**row) for row in rows.mappings())


def archives_of(engine: Engine) -> tuple[LogArchived, ...]:
    """Return the archives of a log, in order; only one in a file has any."""
    with reading(engine) as connection:
        return read_archives(connection)


def read_anchor(connection: Connection) -> LogHead:
    """Return position and hash of the last archived event, which the rest of the log follows."""
    archives = read_archives(connection)
    if not archives:
        return LogHead(position=0, hash=GENESIS_HASH)
    return LogHead(position=archives[-1].last_position, hash=archives[-1].last_hash)


def each_event(engine: Engine, url: str) -> Iterator[RecordedEvent]:
    """Yield every event of the log in order, the archived ones from their files.

    Another process may archive events meanwhile: these are read from the new file.
    """
    after, log = 0, LogReader(engine)
    while True:
        for archive in archives_of(engine):
            if archive.last_position > after:
                events = _file_events(engine, archive_path(url, archive))
                yield from (event for event in events if event.position > after)
            after = max(after, archive.last_position)
        while page := log.select(EventFilter(), after=after, limit=PAGE_EVENTS):
            if any(archive.last_position > after for archive in archives_of(engine)):
                break  # the page may lack events that are in a file now
            yield from page
            after = page[-1].position
        else:
            return


def archived_stream(engine: Engine, url: str, stream: str) -> tuple[RecordedEvent, ...]:
    """Return the events of a stream in those archives whose files are present."""
    return tuple(
        event
        for archive in archives_of(engine)
        if archive_path(url, archive).exists()
        for event in _file_events(engine, archive_path(url, archive))
        if event.stream == stream
    )


def verify_archives(engine: Engine, url: str, *, signed_hashes: dict[int, str]) -> ArchiveReport:
    """Verify that the archives form one chain and are recorded in the log, and verify their files.

    Events of an archived stretch that the log kept must be the same as in the file.

    Raises:
        CorruptLog: Naming the first position that does not verify.
    """
    archives = archives_of(engine)
    if not archives:
        return ArchiveReport(verified=0, missing=())
    log = LogReader(engine)
    recorded = {
        event.data["last_position"]: event
        for event in log.walk(EventFilter(types=[LogArchived.__name__]))
    }
    gone = {event.data["file"] for event in log.walk(EventFilter(types=[ArchiveErased.__name__]))}
    newest = recorded.get(archives[-1].last_position)
    if newest is None:
        first = archives[-1].first_position
        raise CorruptLog(first, "no event of the log records the archive of these events")
    before = LogHead(position=0, hash=GENESIS_HASH)
    verified, missing, erased, needed = 0, [], 0, 1
    for archive in archives:
        first = archive.first_position
        if (first, archive.base_hash) != (before.position + 1, before.hash):
            raise CorruptLog(first, "the archives do not follow each other")
        before = LogHead(position=archive.last_position, hash=archive.last_hash)
        # The event that records an archive may itself be in a later archive.
        recorded_end = recorded.get(archive.last_position)
        if recorded_end is not None and recorded_end.data != asdict(archive):
            raise CorruptLog(archive.last_position, "the log names another archive of these events")
        path = archive_path(url, archive)
        if not path.exists():
            if archive.file in gone:
                erased += 1
            else:
                missing.append(archive.file)
            continue
        _verify_file(archive, path, signed_hashes)
        found = _verify_kept(engine, archive, path, thinned_at=newest.position)
        needed = max(needed, found)
        verified += 1
    _verify_streams(engine, before.position)
    return ArchiveReport(
        verified=verified, missing=tuple(missing), erased=erased, reader_needed=needed
    )


def archived_stretch(engine: Engine, url: str, archive: LogArchived) -> Iterator[RecordedEvent]:
    """Yield the events of an archive; only those that the log kept if the file is missing."""
    path = archive_path(url, archive)
    if path.exists():
        yield from _file_events(engine, path)
        return
    _log.warning("the archive %s is missing: jobs that are only in it are not listed", path)
    first, last = archive.first_position, archive.last_position
    yield from LogReader(engine).walk(after=first - 1, through=last)


def _file_events(engine: Engine, path: Path) -> Iterator[RecordedEvent]:
    """Yield the events of a file with their texts, which are in the database."""
    events = read_events(path)
    while page := list(itertools.islice(events, PAGE_EVENTS)):
        with reading(engine) as connection:
            page_with_texts = with_texts(connection, page)
        yield from page_with_texts


def _verify_file(archive: LogArchived, path: Path, signed_hashes: dict[int, str]) -> None:
    found = verify_file(path, signed_hashes=signed_hashes)
    base = LogHead(position=archive.first_position - 1, hash=archive.base_hash)
    last = LogHead(position=archive.last_position, hash=archive.last_hash)
    if not found.holds_exactly(base, last):
        raise CorruptLog(archive.first_position, f"{path.name} is not the file that was written")


def _verify_kept(engine: Engine, archive: LogArchived, path: Path, *, thinned_at: int) -> int:
    """Verify what the log kept of an archive, and return the least reader version of its events.

    Args:
        thinned_at: Position of the last archiving, which kept the last event of each type.
    """
    query = select(EVENTS.c.position, EVENTS.c.hash).where(
        EVENTS.c.position.between(archive.first_position, archive.last_position)
    )
    with reading(engine) as connection:
        kept: dict[int, str] = dict(connection.execute(query).all())
    latest: dict[tuple[str, str], RecordedEvent] = {}
    needed = 1
    for event in read_events(path):
        needed = max(needed, reader_needed(event.type, event.schema_version))
        if kept.get(event.position, event.hash) != event.hash:
            raise CorruptLog(event.position, f"it is another event than in {path.name}")
        if event.stream.startswith(THINNED):
            latest[event.stream, event.type] = event
        elif event.position not in kept and not is_job_event(event):
            raise CorruptLog(event.position, f"the log lacks it and {path.name} has it")
        if event.type in AGENT_HISTORY and event.position not in kept:
            raise CorruptLog(event.position, f"the log lacks it and {path.name} has it")
    with reading(engine) as connection:
        for (stream, type_name), event in latest.items():
            of_type = select(func.max(EVENTS.c.position)).where(
                EVENTS.c.stream == stream,
                EVENTS.c.type == type_name,
                EVENTS.c.position < thinned_at,
            )
            if (connection.scalar(of_type) or 0) < event.position:
                raise CorruptLog(event.position, f"the log lacks it and {path.name} has it")
    return needed


def _verify_streams(engine: Engine, last: int) -> None:
    """Verify that streams which archives left in the log are whole, and no open job is missing."""
    streams = (
        select(EVENTS.c.stream, func.max(EVENTS.c.position))
        .where(*(EVENTS.c.stream.not_like(f"{prefix}%") for prefix in THINNED))
        .group_by(EVENTS.c.stream)
        .having(func.min(EVENTS.c.position) <= last, func.count() != func.max(EVENTS.c.version))
    )
    open_states = [status.value for status in JobStatus if not status.is_terminal]
    open_jobs = select(JOBS.c.id, JOBS.c.accepted_position).where(
        JOBS.c.status.in_(open_states), JOBS.c.id.not_in(select(EVENTS.c.stream))
    )
    with reading(engine) as connection:
        for query in (streams, open_jobs):
            for stream, position in connection.execute(query.limit(1)):
                raise CorruptLog(position, f"the log lacks events of {stream}")
