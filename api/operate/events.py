"""``/v1/events``: events, the check of their chain, and past states."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, Final, Literal, cast

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.jobs.bodies import JobObject
from api.dialects.jobs.objects import job_object
from api.http.bodies import INT64_MAX, KNOWN_NAME_PATTERN
from api.http.messages import Access, Reply, Request, StreamReply, shown
from api.http.operation import Operation, Place, moment, page_size, text, texts, whole_number
from api.http.sse import Comment, Frame, encode, failure
from domain.audit.past_state import read_past_state
from domain.errors import SemanticError
from domain.log.chain_check import check_stretch
from domain.log.codec import texts_of
from domain.log.record import EventFilter, LogHead, RecordedEvent
from domain.values import rfc3339


class EventObject(TypedDict):
    """An event of the log.

    ``data`` has digests of the texts that a client wrote; ``texts`` has those that are not erased,
    by the name of their field.
    """

    position: int
    stream: str
    version: int
    type: str
    schema_version: int
    data: dict[str, Any]
    event_id: str
    correlation_id: str
    causation_id: str | None
    recorded_at: str
    prev_hash: str
    hash: str
    texts: dict[str, Any]


class EventList(TypedDict):
    """A page of events.

    In the order of the log; ``after=<next_after>`` returns the next page. Or, with ``before``,
    newest first; ``before=<next_before>`` returns the next page of these.
    """

    object: Literal["list"]
    data: list[EventObject]
    has_more: bool
    next_after: int
    next_before: int | None


class EventMark(TypedDict):
    """A position of the log and the hash of its event; 0 and zeros before the first."""

    position: int
    hash: str


class ChainFault(TypedDict):
    """The first event that does not fit, and the reason."""

    position: int
    message: str


class ChainCheck(TypedDict):
    """The check of a stretch of the hash chain; ``after=<next_after>`` checks the next one.

    ``before`` is the event before the first checked one, ``through`` the last event that fits.
    Events up to ``archived_through`` are in archives, which ``semantic log verify`` checks.
    ``has_more`` is false at the end of the log and after a fault.
    """

    object: Literal["events.check"]
    ok: bool
    events: int
    before: EventMark
    through: EventMark
    head: EventMark
    archived_through: int
    fault: ChainFault | None
    has_more: bool
    next_after: int


class PastModel(TypedDict):
    """A worker and the model that it had loaded."""

    worker: str
    model: str


class PastAgentObject(TypedDict):
    """An agent of the listed jobs; ``context_tokens`` is the length of its saved context."""

    agent_id: str
    jobs: int
    open_jobs: int
    context_tokens: int | None


class PastStateObject(TypedDict):
    """The state after the event at ``position``.

    ``type`` and ``recorded_at`` are those of the event; ``null`` if it is in an archive.
    ``jobs`` has the jobs accepted last before it, newest first; ``counts`` counts these by status.
    """

    object: Literal["events.state"]
    position: int
    type: str | None
    recorded_at: str | None
    head: EventMark
    admission: Literal["open", "paused", "draining"]
    models: list[PastModel]
    counts: dict[str, int]
    jobs: list[JobObject]
    agents: list[PastAgentObject]
    has_more: bool


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


async def list_events(app: App, request: Request) -> EventList | Reply | StreamReply:
    """List the events of the log in order, or stream them as they are recorded."""
    wanted, after = _wanted(request), _after(request)
    limit, before = _LIMIT.read(request), _BEFORE.read(request)
    if before is not None:
        return await _newest_first(wanted, after, before, limit, app)
    if _EVENT_STREAM in request.headers.get("accept", ""):
        # The first read precedes the reply, so that an unavailable log is an error with a status.
        first = await app.call(app.log.select, wanted, after=after, limit=PAGE_MAX)
        is_resumed = _LAST_EVENT_ID.read(request) is not None
        if not first and is_resumed and _is_past(wanted, app):
            return Reply(status=204)  # an ``EventSource`` does not reconnect after it
        return StreamReply(pieces=_tail(first, wanted, request, app))
    events = await app.call(app.log.select, wanted, after=after, limit=limit + 1)
    page = events[:limit]
    return {
        "object": "list",
        "data": [event_object(event) for event in page],
        "has_more": len(events) > limit,
        "next_after": page[-1].position if page else after,
        "next_before": None,
    }


async def _newest_first(
    wanted: EventFilter, after: int, before: int, limit: int, app: App
) -> EventList:
    found = await app.call(app.log.select_before, wanted, before=before, limit=limit + 1)
    page = [event for event in reversed(found) if event.position > after]
    has_more = len(page) > limit
    return {
        "object": "list",
        "data": [event_object(event) for event in page[:limit]],
        "has_more": has_more,
        "next_after": page[0].position if page else after,
        "next_before": page[limit - 1].position if has_more else None,
    }


def _after(request: Request) -> int:
    # The header takes precedence: an ``EventSource`` adds it to an address that stays the same.
    last_event_id = _LAST_EVENT_ID.read(request)
    return _AFTER.read(request) if last_event_id is None else last_event_id


def _wanted(request: Request) -> EventFilter:
    return EventFilter(
        stream=_STREAM.read(request),
        types=_TYPE.read(request),
        agent=_AGENT_ID.read(request),
        since=_SINCE.read(request),
        until=_UNTIL.read(request),
        owner=request.caller.sees,
    )


async def _tail(
    page: tuple[RecordedEvent, ...], wanted: EventFilter, request: Request, app: App
) -> AsyncIterator[bytes]:
    """Yield events with their positions as ids, until a side leaves or no event can follow."""
    loop = asyncio.get_running_loop()
    after = _after(request)
    yield encode([Comment("open")])
    ping_at_s = loop.time() + app.ping_s
    while True:
        if page:
            after = page[-1].position
            yield encode([_frame(event) for event in page])
            ping_at_s = loop.time() + app.ping_s
        elif _is_past(wanted, app) or await request.ends_within(TAIL_PAUSE_S):
            return
        elif loop.time() >= ping_at_s:
            yield encode([Comment("ping")])
            ping_at_s = loop.time() + app.ping_s
        if request.gone.is_set() or request.ending.is_set():
            return
        try:
            page = await app.call(app.log.select, wanted, after=after, limit=PAGE_MAX)
        except SemanticError as error:
            # The client reconnects after the last id that it has; nothing is lost.
            yield encode([failure(error)])
            return


def _is_past(wanted: EventFilter, app: App) -> bool:
    """Return whether no further event can match the selection."""
    if wanted.until is None:
        return False
    return wanted.until < rfc3339(app.clock.now() - timedelta(seconds=WRITER_LAG_S))


def _frame(event: RecordedEvent) -> Frame:
    return Frame(id=str(event.position), event=event.type, data=dict(event_object(event)))


def event_object(event: RecordedEvent) -> EventObject:
    """Return an event as clients see it."""
    return cast("EventObject", event.envelope() | {"texts": texts_of(event)})


EVENT_OPERATIONS: Final = (
    Operation(
        "GET /v1/events",
        list_events,
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
        is_streamed=True,
        responses={204: "The client has all events that were recorded before until"},
    ),
)


#: Most events that one request checks; a laptop hashes as many in about 0.2 s.
CHECK_EVENTS_MAX: Final = 5000

_CHECKED_AFTER: Final = whole_number(
    "after", "position before the first event to check", default=0, most=INT64_MAX
)
_EVENTS: Final = page_size(
    default=CHECK_EVENTS_MAX, most=CHECK_EVENTS_MAX, description="largest number of checked events"
)
_AT: Final = whole_number(
    "at", "position of the event; the end of the log by default", default=None, most=INT64_MAX
)
_JOBS: Final = page_size(default=20, most=100, description="largest number of jobs")


def check_events(app: App, request: Request) -> ChainCheck:
    """Check the hash chain of a stretch of the log."""
    found = check_stretch(app.log, after=_CHECKED_AFTER.read(request), limit=_EVENTS.read(request))
    fault = found.fault
    return {
        "object": "events.check",
        "ok": fault is None,
        "events": found.through.position - found.before.position,
        "before": mark_of(found.before),
        "through": mark_of(found.through),
        "head": mark_of(found.head),
        "archived_through": found.archived_through,
        "fault": None if fault is None else shown(ChainFault, fault),
        "has_more": fault is None and found.through.position < found.head.position,
        "next_after": found.through.position,
    }


def get_past_state(app: App, request: Request) -> PastStateObject:
    """Return the state of the service after an event of the log."""
    found = read_past_state(app.log, at=_AT.read(request), jobs_max=_JOBS.read(request))
    event = found.event
    return shown(
        PastStateObject,
        found,
        object="events.state",
        type=None if event is None else event.type,
        recorded_at=None if event is None else event.recorded_at,
        head=mark_of(found.head),
        models=[{"worker": worker, "model": model} for worker, model in found.loaded.items()],
        counts=dict(Counter(job.status.value for job in found.jobs)),
        jobs=[job_object(job, None) for job in found.jobs],
        agents=[shown(PastAgentObject, agent, agent_id=agent.id) for agent in found.agents],
    )


def mark_of(head: LogHead) -> EventMark:
    """Return the head of a log, or of a part of it, as clients see it."""
    return shown(EventMark, head)


CHECK_OPERATIONS: Final = (
    Operation(
        "GET /v1/events/check",
        check_events,
        parameters=(_CHECKED_AFTER, _EVENTS),
        access=Access.READ_ALL,
    ),
    Operation(
        "GET /v1/events/state", get_past_state, parameters=(_AT, _JOBS), access=Access.READ_ALL
    ),
)
