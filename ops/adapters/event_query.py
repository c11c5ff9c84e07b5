"""Reads the events that a person asks for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Select, or_, select

from domain.record import RecordedEvent
from ops.adapters.log_reader import reading
from ops.adapters.recording import event_of
from ops.adapters.tables import EVENTS, JOBS

#: Events read at a time.
PAGE_EVENTS = 500
_AGENT_STREAM = "agent-"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events; what is not said does not matter.

    Attributes:
        stream: Of this stream.
        types: Of any of these types.
        agent: Of the jobs of this agent, or of the agent itself.
        since: Recorded at this RFC 3339 instant with microseconds or later.
        until: Recorded before this one.
    """

    stream: str | None = None
    types: Sequence[str] = ()
    agent: str | None = None
    since: str | None = None
    until: str | None = None


class EventQuery:
    """The events that fit a filter, from old to new.

    Args:
        engine: From ``reader_engine``.
        wanted: Which.
    """

    def __init__(self, engine: Engine, wanted: EventFilter) -> None:
        self._engine = engine
        self._query = _where(wanted)

    def after(self, position: int, limit: int) -> tuple[RecordedEvent, ...]:
        """Return the first ``limit`` events above ``position``.

        Raises:
            LogUnavailable: The database cannot be read.
            CorruptLog: The data of one is not JSON.
        """
        query = self._query.where(EVENTS.c.position > position).order_by(EVENTS.c.position)
        return self._events(query.limit(limit))

    def last(self, count: int) -> tuple[RecordedEvent, ...]:
        """Return the last ``count`` events, in order; raises what ``after`` raises."""
        query = self._query.order_by(EVENTS.c.position.desc()).limit(count)
        return self._events(query)[::-1]

    def each(self, *, after: int = 0, limit: int | None = None) -> Iterator[RecordedEvent]:
        """Yield events page by page, at most ``limit``; raises what ``after`` raises."""
        left = limit
        while left is None or left > 0:
            page = self.after(after, PAGE_EVENTS if left is None else min(left, PAGE_EVENTS))
            if not page:
                return
            yield from page
            after = page[-1].position
            left = None if left is None else left - len(page)

    def _events(self, query: Select[Any]) -> tuple[RecordedEvent, ...]:
        with reading(self._engine) as connection:
            return tuple(event_of(row) for row in connection.execute(query).all())


def _where(wanted: EventFilter) -> Select[Any]:
    query = select(EVENTS)
    if wanted.stream is not None:
        query = query.where(EVENTS.c.stream == wanted.stream)
    if wanted.types:
        query = query.where(EVENTS.c.type.in_(wanted.types))
    if wanted.agent is not None:
        jobs = select(JOBS.c.id).where(JOBS.c.agent == wanted.agent)
        itself = EVENTS.c.stream == _AGENT_STREAM + wanted.agent
        query = query.where(or_(EVENTS.c.stream.in_(jobs), itself))
    if wanted.since is not None:
        query = query.where(EVENTS.c.recorded_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(EVENTS.c.recorded_at < wanted.until)
    return query
