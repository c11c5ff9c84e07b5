"""Rebuilds the projections from the events; processes that open one log together take turns."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection, Engine, delete, func, insert, select

from domain.errors import CorruptLog
from domain.log.record import RecordedEvent
from ops.data_dir.lock import DataDirLocked, DataLock
from ops.log.archives import archived_stretch, read_archives
from ops.log.database import (
    database_file,
    disposed,
    reader_engine,
    unavailable,
    writer_engine,
)
from ops.log.projections.fold import (
    CATCH_UP_EVENTS_MAX,
    LIVE,
    NEXT,
    Checkpoint,
    catch_up,
    clear,
    fold_in,
    read_checkpoint,
    write_checkpoint,
)
from ops.log.row_codec import read_head

#: How long a process waits for the rebuild of another one.
REBUILD_WAIT_MAX_S: Final = 3600.0
#: Key of the advisory lock on a server: ``rebuild`` in ASCII.
REBUILD_LOCK: Final = 0x72656275696C64


@contextmanager
def rebuild_turn(url: str) -> Iterator[None]:
    """Hold the lock of the log's rebuilds, which the system releases if this process dies.

    Raises:
        LogUnavailable: Another process rebuilds for too long, or the database cannot be read.
    """
    file = database_file(url)
    failure = "another process rebuilds the projections"
    if file is not None:
        lock = DataLock(file.with_name(file.name + ".rebuild"))
        with unavailable(failure, DataDirLocked):
            lock.acquire_within(REBUILD_WAIT_MAX_S)
        with lock:
            yield
        return
    with disposed(reader_engine(url)) as engine, engine.connect() as connection:
        wait_ms = str(int(REBUILD_WAIT_MAX_S * 1000))
        with unavailable(failure):
            connection.execute(select(func.set_config("lock_timeout", wait_ms, False))).close()  # noqa: FBT003 - of SQL
            connection.execute(select(func.pg_advisory_lock(REBUILD_LOCK))).close()
        try:
            yield
        finally:
            connection.execute(select(func.pg_advisory_unlock(REBUILD_LOCK))).close()


#: Called with the position reached and the last position there is.
Progress = Callable[[int, int], None]

#: Seconds between two log lines of a long rebuild.
LOG_EVERY_S = 5.0

_log = logging.getLogger(__name__)


def rebuild_projections(url: str, *, progress: Progress | None = None) -> int:
    """Rebuild the projections; safe to repeat, and while other processes write.

    Returns:
        The position up to which events are folded in.
    """
    with (
        unavailable("the projections cannot be rebuilt"),
        disposed(writer_engine(url)) as engine,
        rebuild_turn(url),
    ):
        return _rebuild(engine, url, progress)


def ensure_projections(url: str, *, progress: Progress | None = None) -> None:
    """Bring the projections up to date, or rebuild those of another version.

    Raises:
        CorruptLog: An event cannot be read, or the end of the log is missing.
    """
    failure = "the projections cannot be brought up to date"
    with unavailable(failure), disposed(writer_engine(url)) as engine:
        with engine.begin() as connection:
            checkpoint = read_checkpoint(connection, LIVE.jobs)
            head = read_head(connection).position
        if checkpoint.position > head:
            raise CorruptLog(head + 1, "events that a projection has read are missing")
        if not checkpoint.is_current_version:
            _log.warning("the projections are of version %d: rebuilding", checkpoint.version)
            with rebuild_turn(url):
                with engine.begin() as connection:
                    checkpoint = read_checkpoint(connection, LIVE.jobs)
                if not checkpoint.is_current_version:  # else another process has done it
                    _rebuild(engine, url, progress or _logged())
        elif checkpoint.position < head:
            _log.warning("the projections are at %d of %d", checkpoint.position, head)
            while checkpoint.position < head:
                with engine.begin() as connection:
                    checkpoint = catch_up(connection, LIVE)
                if progress is not None:
                    progress(checkpoint.position, head)


def _logged() -> Progress:
    """Return a function that logs the progress of a long rebuild now and then."""
    next_at_s = time.monotonic() + LOG_EVERY_S

    def log(position: int, head: int) -> None:
        nonlocal next_at_s
        if time.monotonic() >= next_at_s:
            next_at_s = time.monotonic() + LOG_EVERY_S
            _log.warning("%d of %d events are folded", position, head)

    return log


def _rebuild(engine: Engine, url: str, progress: Progress | None) -> int:
    with engine.begin() as connection:
        clear(connection, NEXT)
        archives = read_archives(connection)
        head = read_head(connection).position
    for archive in archives:
        for page in pages_of(archived_stretch(engine, url, archive)):
            with engine.begin() as connection:
                fold_in(connection, NEXT, page)
            if progress is not None:
                progress(page[-1].position, head)
    if archives:
        with engine.begin() as connection:
            write_checkpoint(connection, NEXT.jobs, archives[-1].last_position)
    while True:  # ends, since each round folds more events than a live writer appends meanwhile
        with engine.begin() as connection:
            checkpoint: Checkpoint = catch_up(connection, NEXT)
            head = read_head(connection).position
            if checkpoint.position >= head:
                _swap(connection, head)
        if progress is not None:
            progress(checkpoint.position, head)
        if checkpoint.position >= head:
            return head


def pages_of(events: Iterator[RecordedEvent]) -> Iterator[list[RecordedEvent]]:
    """Yield events in lists of those that one transaction folds."""
    while page := list(itertools.islice(events, CATCH_UP_EVENTS_MAX)):
        yield page


def _swap(connection: Connection, position: int) -> None:
    for live, following in zip(LIVE.tables, NEXT.tables, strict=True):
        connection.execute(delete(live))
        columns = [column.name for column in live.columns]
        copied = select(*(following.c[name] for name in columns))
        connection.execute(insert(live).from_select(columns, copied))
    write_checkpoint(connection, LIVE.jobs, position)
    clear(connection, NEXT)
