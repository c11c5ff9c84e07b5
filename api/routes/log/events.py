"""``GET /v1/events``: the event log, page by page or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, cast

from api.app import App
from api.http.messages import Reply, Request, StreamReply
from api.http.operation import Operation
from api.http.parameters import Place, moment, page_size, text, texts, whole_number
from api.http.replies import json_reply
from api.http.sse import Comment, Frame, encode
from api.schemas.base import INT64_MAX, KNOWN_NAME_PATTERN
from api.schemas.log import EventList, EventObject
from domain.errors import SemanticError
from domain.log.codec import texts_of
from domain.log.record import EventFilter, RecordedEvent
from domain.values import rfc3339

#: Events that are read from the log at once.
PAGE_MAX: Final = 1000
#: Pause between two reads of a log without new events, in seconds.
TAIL_PAUSE_S: Final = 0.2
#: How long after an instant an event may appear that was recorded before it, in seconds.
WRITER_LAG_S: Final = 15.0
_EVENT_STREAM: Final = "text/event-stream"

_LAST_EVENT_ID: Final = whole_number(
    "Last-Event-ID",
    "position of the last event received; takes precedence over the parameter after",
    default=None,
    most=INT64_MAX,
    place=Place.HEADER,
)
_AFTER: Final = whole_number(
    "after", "position before that of the first event", default=0, most=INT64_MAX
)
_BEFORE: Final = whole_number(
    "before",
    "position after that of the newest event; the page is then newest first, and no stream",
    default=None,
    most=INT64_MAX,
)
_LIMIT: Final = page_size(default=100, most=PAGE_MAX)
_STREAM: Final = text("stream", "only events of this stream", pattern=KNOWN_NAME_PATTERN)
_TYPE: Final = texts("type", "only events of these types", most=32)
_AGENT_ID: Final = text(
    "agent_id", "only events of this agent and of its jobs", pattern=KNOWN_NAME_PATTERN
)
_SINCE: Final = moment("since", "only events recorded at this instant or later")
_UNTIL: Final = moment("until", "only events recorded before this instant; a stream ends there")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    """The events that a request selects.

    Attributes:
        after: Position before the first.
        events: Filter of those behind it.
    """

    after: int
    events: EventFilter


async def list_events(app: App, request: Request) -> Reply | StreamReply:
    """List events in order after a position, or newest first before one; or stream them."""
    selection, limit, before = _selection(request), _LIMIT.read(request), _BEFORE.read(request)
    if before is not None:
        return await _newest_first(selection, before, limit, app)
    if _EVENT_STREAM in request.headers.get("accept", ""):
        # The first read precedes the reply, so that an unavailable log is an error with a status.
        first = await _read(selection, selection.after, PAGE_MAX, app)
        is_resumed = _LAST_EVENT_ID.read(request) is not None
        if not first and is_resumed and _is_past(selection, app):
            return Reply(status=204)  # an ``EventSource`` does not reconnect after it
        return StreamReply(pieces=_tail(first, selection, request, app))
    events = await _read(selection, selection.after, limit + 1, app)
    page = events[:limit]
    body: EventList = {
        "object": "list",
        "data": [_event(event) for event in page],
        "has_more": len(events) > limit,
        "next_after": page[-1].position if page else selection.after,
        "next_before": None,
    }
    return json_reply(body)


async def _newest_first(selection: _Selection, before: int, limit: int, app: App) -> Reply:
    found = await app.call(app.log.select_before, selection.events, before=before, limit=limit + 1)
    page = [event for event in reversed(found) if event.position > selection.after]
    has_more = len(page) > limit
    body: EventList = {
        "object": "list",
        "data": [_event(event) for event in page[:limit]],
        "has_more": has_more,
        "next_after": page[0].position if page else selection.after,
        "next_before": page[limit - 1].position if has_more else None,
    }
    return json_reply(body)


def _selection(request: Request) -> _Selection:
    # The header takes precedence: an ``EventSource`` adds it to an address that stays the same.
    after, last_event_id = _AFTER.read(request), _LAST_EVENT_ID.read(request)
    events = EventFilter(
        stream=_STREAM.read(request),
        types=_TYPE.read(request),
        agent=_AGENT_ID.read(request),
        since=_SINCE.read(request),
        until=_UNTIL.read(request),
        owner=request.caller.sees,
    )
    return _Selection(after=after if last_event_id is None else last_event_id, events=events)


async def _read(
    selection: _Selection, after: int, limit: int, app: App
) -> tuple[RecordedEvent, ...]:
    return await app.call(app.log.select, selection.events, after=after, limit=limit)


async def _tail(
    page: tuple[RecordedEvent, ...], selection: _Selection, request: Request, app: App
) -> AsyncIterator[bytes]:
    """Yield events with their positions as ids, until a side leaves or no event can follow."""
    loop = asyncio.get_running_loop()
    after = selection.after
    yield encode([Comment("open")])
    ping_at_s = loop.time() + app.ping_s
    while True:
        if page:
            after = page[-1].position
            yield encode([_frame(event) for event in page])
            ping_at_s = loop.time() + app.ping_s
        elif _is_past(selection, app) or await request.ends_within(TAIL_PAUSE_S):
            return
        elif loop.time() >= ping_at_s:
            yield encode([Comment("ping")])
            ping_at_s = loop.time() + app.ping_s
        if request.gone.is_set() or request.ending.is_set():
            return
        try:
            page = await _read(selection, after, PAGE_MAX, app)
        except SemanticError as error:
            # The client reconnects after the last id that it has; nothing is lost.
            yield encode([Frame(event="error", data={"code": error.code, "detail": error.message})])
            return


def _is_past(selection: _Selection, app: App) -> bool:
    """Return whether no further event can match the selection."""
    if selection.events.until is None:
        return False
    return selection.events.until < rfc3339(app.clock.now() - timedelta(seconds=WRITER_LAG_S))


def _frame(event: RecordedEvent) -> Frame:
    return Frame(id=str(event.position), event=event.type, data=dict(_event(event)))


def _event(event: RecordedEvent) -> EventObject:
    return cast("EventObject", event.envelope() | {"texts": texts_of(event)})


EVENT_OPERATIONS: Final = (
    Operation(
        "GET /v1/events",
        list_events,
        id="listEvents",
        summary="List the events of the log in order, or stream them as they are recorded",
        parameters=(
            _LAST_EVENT_ID,
            _AFTER,
            _BEFORE,
            _LIMIT,
            _STREAM,
            _TYPE,
            _AGENT_ID,
            _SINCE,
            _UNTIL,
        ),
        reply=EventList,
        is_streamed=True,
        responses={204: "The client has all events that were recorded before until"},
    ),
)
