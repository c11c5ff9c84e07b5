"""Reads events and payloads on connections that cannot write."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Engine, Select, bindparam, literal, or_, select

from domain.errors import PayloadDamaged, PayloadMissing
from domain.log.ports import EventLog
from domain.log.record import AGENT_STREAM, EventFilter, LogHead, RecordedEvent
from domain.values import Digest, Owner, StreamName, digest_of
from ops.log.database import reading
from ops.log.hot_statements import HotStatement
from ops.log.row_codec import PAYLOAD, event_of, read_head, with_texts
from ops.log.tables import AGENTS, EVENTS, JOBS, OWNED_STREAMS, WEBHOOKS

#: Events read at a time.
PAGE_EVENTS = 500


def _query(wanted: EventFilter) -> Select[Any]:
    """Return the query of the events that fit, in no order."""
    query = select(EVENTS)
    if wanted.stream is not None:
        query = query.where(EVENTS.c.stream == wanted.stream)
    if wanted.types:
        query = query.where(EVENTS.c.type.in_(wanted.types))
    if wanted.agent is not None:
        jobs = select(JOBS.c.id).where(JOBS.c.agent == wanted.agent)
        own_stream = EVENTS.c.stream == AGENT_STREAM + wanted.agent
        query = query.where(or_(EVENTS.c.stream.in_(jobs), own_stream))
    if wanted.owner is not None:
        query = query.where(_is_owned_by(wanted.owner))
    if wanted.since is not None:
        query = query.where(EVENTS.c.recorded_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(EVENTS.c.recorded_at < wanted.until)
    return query


def _is_owned_by(owner: Owner) -> ColumnElement[bool]:
    return or_(
        EVENTS.c.stream.in_(select(JOBS.c.id).where(JOBS.c.owner == owner)),
        EVENTS.c.stream.in_(
            select(literal(AGENT_STREAM) + AGENTS.c.id).where(AGENTS.c.owner == owner)
        ),
        EVENTS.c.stream.in_(select(OWNED_STREAMS.c.stream).where(OWNED_STREAMS.c.owner == owner)),
        EVENTS.c.stream.in_(select(WEBHOOKS.c.id).where(WEBHOOKS.c.owner == owner)),
    )


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
    """The reading half of ``EventLog``, and ``PayloadStore``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def load(self, stream: StreamName, *, after_version: int = 0) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.load``."""
        with reading(self._engine) as connection:
            rows = _STREAM.rows(connection, {"stream": stream, "after_version": after_version})
            return with_texts(connection, [event_of(row) for row in rows])

    def select(
        self,
        wanted: EventFilter = EventFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        limit: int = 100,
    ) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.select``."""
        query = _query(wanted).where(EVENTS.c.position > after).order_by(EVENTS.c.position)
        return self._events(query.limit(limit))

    def select_before(
        self, wanted: EventFilter, *, before: int | None = None, limit: int = 100
    ) -> tuple[RecordedEvent, ...]:
        """See ``EventLog.select_before``."""
        query = _query(wanted)
        if before is not None:
            query = query.where(EVENTS.c.position < before)
        return self._events(query.order_by(EVENTS.c.position.desc()).limit(limit))[::-1]

    def walk(
        self,
        wanted: EventFilter = EventFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        through: int | None = None,
        limit: int | None = None,
    ) -> Iterator[RecordedEvent]:
        """Yield events that fit page by page, from old to new."""
        left = limit
        while left is None or left > 0:
            size = PAGE_EVENTS if left is None else min(left, PAGE_EVENTS)
            page = self.select(wanted, after=after, limit=size)
            if not page:
                return
            for event in page:
                if through is not None and event.position > through:
                    return
                yield event
            after = page[-1].position
            left = None if left is None else left - len(page)

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

    def _events(self, query: Select[Any]) -> tuple[RecordedEvent, ...]:
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
            return with_texts(connection, [event_of(row) for row in rows])


def follow(
    log: EventLog | LogReader, wanted: EventFilter, *, after: int, stopped: threading.Event
) -> Iterator[RecordedEvent]:
    """Yield the events that fit after a position, then each new one, until ``stopped`` is set.

    The pause between two reads doubles while there is no new event, up to ``TAIL_PAUSE_MAX_S``.
    """
    pause_s = TAIL_PAUSE_MIN_S
    while not stopped.is_set():
        page = log.select(wanted, after=after, limit=_TAIL_PAGE)
        yield from page
        if page:
            after = page[-1].position
            pause_s = TAIL_PAUSE_MIN_S
            continue
        stopped.wait(pause_s)
        pause_s = min(pause_s * 2, TAIL_PAUSE_MAX_S)
