"""Reads the events that fit a filter, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import ColumnElement, Engine, Select, literal, or_, select

from domain.log.record import AGENT_STREAM, EventFilter, RecordedEvent
from domain.values import Owner
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.row_codec import event_of, with_texts
from ops.adapters.event_log.tables import AGENTS, EVENTS, JOBS, OWNED_STREAMS, WEBHOOKS

#: Events read at a time.
PAGE_EVENTS = 500


class EventQuery:
    """The events that fit a filter, from old to new.

    Args:
        engine: From ``reader_engine``.
    """

    def __init__(self, engine: Engine, wanted: EventFilter) -> None:
        self._engine = engine
        self._query = _query(wanted)

    def after(self, position: int, limit: int) -> tuple[RecordedEvent, ...]:
        """Return the first ``limit`` events above ``position``.

        Raises:
            LogUnavailable: The database cannot be read.
            CorruptLog: The data of one is not JSON.
        """
        query = self._query.where(EVENTS.c.position > position).order_by(EVENTS.c.position)
        return self._events(query.limit(limit))

    def last(self, count: int, *, before: int | None = None) -> tuple[RecordedEvent, ...]:
        """Return the last ``count`` events below a position, in order; raises as ``after``."""
        query = self._query if before is None else self._query.where(EVENTS.c.position < before)
        return self._events(query.order_by(EVENTS.c.position.desc()).limit(count))[::-1]

    def each(
        self, *, after: int = 0, through: int | None = None, limit: int | None = None
    ) -> Iterator[RecordedEvent]:
        """Yield events page by page; raises what ``after`` raises.

        Args:
            after: The position to begin above.
            through: The last position to yield.
            limit: The most events to yield.
        """
        left = limit
        while left is None or left > 0:
            page = self.after(after, PAGE_EVENTS if left is None else min(left, PAGE_EVENTS))
            if not page:
                return
            for event in page:
                if through is not None and event.position > through:
                    return
                yield event
            after = page[-1].position
            left = None if left is None else left - len(page)

    def _events(self, query: Select[Any]) -> tuple[RecordedEvent, ...]:
        with reading(self._engine) as connection:
            rows = connection.execute(query).all()
            return with_texts(connection, [event_of(row) for row in rows])


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
