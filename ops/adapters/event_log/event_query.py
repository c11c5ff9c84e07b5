"""Reads the events that a person asks for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Engine, Select

from domain.log.record import EventFilter, RecordedEvent
from ops.adapters.event_log.event_filter import where
from ops.adapters.event_log.reader import reading
from ops.adapters.event_log.row_codec import event_of
from ops.adapters.event_log.tables import EVENTS

#: Events read at a time.
PAGE_EVENTS = 500


class EventQuery:
    """The events that fit a filter, from old to new.

    Args:
        engine: From ``reader_engine``.
        wanted: Which.
    """

    def __init__(self, engine: Engine, wanted: EventFilter) -> None:
        self._engine = engine
        self._query = where(wanted)

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
