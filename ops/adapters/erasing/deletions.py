"""Reads whether something was deleted since the last sweep."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Engine, func, select

from domain.events.agent import AgentDeleted
from domain.events.batch import BatchDeleted, FileDeleted
from domain.events.job import JobHidden
from domain.events.log import TextsErased
from domain.log.record import EventFilter
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.event_query import EventQuery
from ops.adapters.event_log.tables import EVENTS

_DELETIONS: Final = tuple(
    cls.__name__ for cls in (AgentDeleted, BatchDeleted, FileDeleted, JobHidden)
)


def last_deletion(reader: Engine) -> int:
    """Return the position of the last deletion, 0 if there is none.

    Raises:
        LogUnavailable: The log cannot be read.
    """
    query = select(func.max(EVENTS.c.position)).where(EVENTS.c.type.in_(_DELETIONS))
    with reading(reader) as connection:
        return int(connection.scalar(query) or 0)


def last_sweep(reader: Engine) -> tuple[int, int]:
    """Return the position of the last sweep that erased, and how many jobs and texts it left.

    Raises:
        LogUnavailable: The log cannot be read.
    """
    last = EventQuery(reader, EventFilter(types=(TextsErased.__name__,))).last(1)
    return (last[0].position, last[0].data["waiting"]) if last else (0, 0)
