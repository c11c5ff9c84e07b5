"""Reads events and payloads on connections that cannot write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from sqlalchemy import Engine, bindparam, select

from domain.errors import PayloadDamaged
from domain.log.ports import EventLog
from domain.log.record import EventFilter, LogHead, RecordedEvent
from domain.not_found import PayloadMissing
from domain.values import Digest, StreamName, digest_of
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.event_query import EventQuery
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.row_codec import PAYLOAD, event_of, read_head, with_texts
from ops.adapters.event_log.tables import EVENTS

#: Bounds of the pause between two reads of a log that has no new event.
TAIL_PAUSE_MIN_S = 0.02
TAIL_PAUSE_MAX_S = 0.5
_TAIL_PAGE = 500

_STREAM = HotStatement(
    select(EVENTS)
    .where(EVENTS.c.stream == bindparam("stream"), EVENTS.c.version > bindparam("after_version"))
    .order_by(EVENTS.c.version)
)


class LogReader:
    """The reading half of ``EventLog``, and ``PayloadStore``.

    Args:
        engine: From ``reader_engine``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.load``."""
        with reading(self._engine) as connection:
            rows = _STREAM.rows(connection, {"stream": stream, "after_version": after_version})
            return with_texts(connection, [event_of(row) for row in rows])

    def read_all(
        self,
        *,
        after: int = 0,
        limit: int = 100,
        stream: StreamName | None = None,
        types: Sequence[str] = (),
    ) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.read_all``."""
        return self.select(EventFilter(stream=stream, types=types), after=after, limit=limit)

    def select(
        self, wanted: EventFilter, *, after: int = 0, limit: int = 100
    ) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.select``."""
        return EventQuery(self._engine, wanted).after(after, limit)

    def select_before(
        self, wanted: EventFilter, *, before: int, limit: int = 100
    ) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.select_before``."""
        return EventQuery(self._engine, wanted).last(limit, before=before)

    def last(
        self, count: int, *, stream: StreamName | None = None, types: Sequence[str] = ()
    ) -> tuple[RecordedEvent, ...]:
        """Return the last ``count`` events that fit, in order."""
        return EventQuery(self._engine, EventFilter(stream=stream, types=types)).last(count)

    def latest(self, type_name: str) -> RecordedEvent | None:
        """See ``EventLog.latest``."""
        found = self.last(1, types=[type_name])
        return found[0] if found else None

    def head(self) -> LogHead:
        """See ``EventLog.head``."""
        with reading(self._engine) as connection:
            return read_head(connection)

    def get(self, digest: Digest) -> bytes:
        """See ``PayloadStore.get``."""
        with reading(self._engine) as connection:
            row = PAYLOAD.row(connection, {"digest": digest})
        if row is None:
            raise PayloadMissing(digest)
        content = bytes(row[0])
        if digest_of(content) != digest:
            raise PayloadDamaged(digest)
        return content


def tail(
    log: EventLog | LogReader,
    *,
    after: int,
    stopped: threading.Event,
    stream: StreamName | None = None,
    types: Sequence[str] = (),
) -> Iterator[RecordedEvent]:
    """Yield the events after a position, then each new one, until ``stopped`` is set.

    The pause between two reads doubles while there is no new event, up to ``TAIL_PAUSE_MAX_S``.
    """
    return follow(
        lambda position, limit: log.read_all(
            after=position, limit=limit, stream=stream, types=types
        ),
        after=after,
        stopped=stopped,
    )


def follow(
    read: Callable[[int, int], Sequence[RecordedEvent]], *, after: int, stopped: threading.Event
) -> Iterator[RecordedEvent]:
    """Yield the events that ``read`` returns, and poll it for more until ``stopped`` is set.

    Args:
        read: Takes a position and a limit; returns the next events above that position.
        after: The position to begin above.
        stopped: Ends the wait for more events.
    """
    pause_s = TAIL_PAUSE_MIN_S
    while not stopped.is_set():
        page = read(after, _TAIL_PAGE)
        yield from page
        if page:
            after = page[-1].position
            pause_s = TAIL_PAUSE_MIN_S
            continue
        stopped.wait(pause_s)
        pause_s = min(pause_s * 2, TAIL_PAUSE_MAX_S)
