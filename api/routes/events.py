"""``GET /v1/events``: the log itself, page by page or as it grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from api.http.messages import Reply, Request, StreamReply
from api.http.query import moment, text, whole_number
from api.http.replies import json_reply
from api.http.sse import Comment, Frame, encode
from api.schemas.base import INT64_MAX, NAME_PATTERN
from api.schemas.replies import EventList, EventObject
from api.services import Services
from domain.errors import InvalidRequest, SemanticError
from domain.log.record import EventFilter, RecordedEvent
from ops.adapters.event_log.row_codec import instant

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1000
TYPES_MAX: Final = 32
#: Between two looks at a log that said nothing new.
TAIL_PAUSE_S: Final = 0.2
#: How long after an instant an event may appear that was recorded before it, in seconds.
WRITER_LAG_S: Final = 15.0
_CURSOR_HEADER: Final = "last-event-id"
_EVENT_STREAM: Final = "text/event-stream"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """Which events.

    Attributes:
        after: Position before the first.
        events: Those among them that are wanted.
    """

    after: int
    events: EventFilter


async def list_events(request: Request, *, services: Services) -> Reply | StreamReply:
    """List events in order after a position; follow the log where the client asks for a stream."""
    wanted = _wanted(request)
    limit = whole_number(request.query, "limit", default=PAGE_DEFAULT, least=1, most=PAGE_MAX)
    if _EVENT_STREAM in request.headers.get("accept", ""):
        # Asked for once before the answer begins, so that a log that is away is an honest error.
        first = await _read(wanted, wanted.after, PAGE_MAX, services)
        if not first and _CURSOR_HEADER in request.headers and _is_past(wanted, services):
            return Reply(status=204)  # tells an ``EventSource`` not to come again
        return StreamReply(pieces=_tail(first, wanted, request, services))
    events = await _read(wanted, wanted.after, limit + 1, services)
    page = events[:limit]
    body: EventList = {
        "object": "list",
        "data": [_event(event) for event in page],
        "has_more": len(events) > limit,
        "next_after": page[-1].position if page else wanted.after,
    }
    return json_reply(body)


def _wanted(request: Request) -> _Wanted:
    query = request.query
    after = whole_number(query, "after", default=0, least=0, most=INT64_MAX)
    header = request.headers.get(_CURSOR_HEADER)
    if header is not None:
        # It goes before the query: an ``EventSource`` adds it to the address it was given.
        after = whole_number(
            {_CURSOR_HEADER: (header,)}, _CURSOR_HEADER, default=0, least=0, most=INT64_MAX
        )
    types = query.get("type", ())
    if len(types) > TYPES_MAX:
        msg = f"at most {TYPES_MAX} types can be asked for"
        raise InvalidRequest(msg, field="type")
    events = EventFilter(
        stream=text(query, "stream", pattern=NAME_PATTERN),
        types=tuple(types),
        agent=text(query, "agent_id", pattern=NAME_PATTERN),
        since=moment(query, "since"),
        until=moment(query, "until"),
    )
    return _Wanted(after=after, events=events)


async def _read(
    wanted: _Wanted, after: int, limit: int, services: Services
) -> tuple[RecordedEvent, ...]:
    return await services.call(services.log.select, wanted.events, after=after, limit=limit)


async def _tail(
    page: tuple[RecordedEvent, ...], wanted: _Wanted, request: Request, services: Services
) -> AsyncIterator[bytes]:
    """Yield events as frames whose ids are positions, until one side leaves or all is told."""
    loop = asyncio.get_running_loop()
    after = wanted.after
    yield encode([Comment("open")])
    ping_at_s = loop.time() + services.ping_s
    while True:
        if page:
            after = page[-1].position
            yield encode([_frame(event) for event in page])
            ping_at_s = loop.time() + services.ping_s
        elif _is_past(wanted, services) or await _over(request, TAIL_PAUSE_S):
            return
        elif loop.time() >= ping_at_s:
            yield encode([Comment("ping")])
            ping_at_s = loop.time() + services.ping_s
        if request.gone.is_set() or request.ending.is_set():
            return
        try:
            page = await _read(wanted, after, PAGE_MAX, services)
        except SemanticError as error:
            # The client reconnects after the last id that it has; nothing is lost.
            yield encode([Frame(event="error", data={"code": error.code, "detail": error.message})])
            return


def _is_past(wanted: _Wanted, services: Services) -> bool:
    """Whether nothing can be recorded any more that is wanted."""
    if wanted.events.until is None:
        return False
    return wanted.events.until < instant(services.clock.now() - timedelta(seconds=WRITER_LAG_S))


def _frame(event: RecordedEvent) -> Frame:
    return Frame(id=str(event.position), event=event.type, data=dict(_event(event)))


async def _over(request: Request, timeout_s: float) -> bool:
    """Wait a while; return whether the client has left or the server ends its streams."""
    waits = [
        asyncio.ensure_future(request.gone.wait()),
        asyncio.ensure_future(request.ending.wait()),
    ]
    try:
        done, _ = await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
    return bool(done)


def _event(event: RecordedEvent) -> EventObject:
    return {
        "position": event.position,
        "stream": event.stream,
        "version": event.version,
        "type": event.type,
        "schema_version": event.schema_version,
        "data": dict(event.data),
        "event_id": event.event_id,
        "correlation_id": event.correlation_id,
        "causation_id": event.causation_id,
        "recorded_at": event.recorded_at,
        "prev_hash": event.prev_hash,
        "hash": event.hash,
    }
