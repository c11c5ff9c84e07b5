"""What a filter of events means to the database: for the api and the command line alike."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, or_, select

from domain.log.record import AGENT_STREAM, EventFilter
from ops.adapters.event_log.tables import EVENTS, JOBS


def where(wanted: EventFilter) -> Select[Any]:
    """Return the query of the events that fit, in no order."""
    query = select(EVENTS)
    if wanted.stream is not None:
        query = query.where(EVENTS.c.stream == wanted.stream)
    if wanted.types:
        query = query.where(EVENTS.c.type.in_(wanted.types))
    if wanted.agent is not None:
        jobs = select(JOBS.c.id).where(JOBS.c.agent == wanted.agent)
        itself = EVENTS.c.stream == AGENT_STREAM + wanted.agent
        query = query.where(or_(EVENTS.c.stream.in_(jobs), itself))
    if wanted.since is not None:
        query = query.where(EVENTS.c.recorded_at >= wanted.since)
    if wanted.until is not None:
        query = query.where(EVENTS.c.recorded_at < wanted.until)
    return query
