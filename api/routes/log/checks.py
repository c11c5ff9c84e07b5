"""``/v1/events/check`` and ``/v1/events/state``: the chain, and the state after an event."""

from __future__ import annotations

from collections import Counter
from typing import Final

from api.app import App
from api.http.caller import Access
from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.parameters import page_size, whole_number
from api.http.replies import json_reply
from api.presenters.jobs import job_object
from api.schemas.base import INT64_MAX
from api.schemas.log import ChainCheck, EventMark, PastStateObject
from domain.log.record import LogHead
from domain.usecases.chain_check import check_stretch
from domain.usecases.past_state import read_past_state

#: Most events that one request checks; a laptop hashes as many in about 0.2 s.
CHECK_EVENTS_MAX: Final = 5000

_AFTER: Final = whole_number(
    "after", "position before the first event to check", default=0, most=INT64_MAX
)
_EVENTS: Final = page_size(
    default=CHECK_EVENTS_MAX, most=CHECK_EVENTS_MAX, description="largest number of checked events"
)
_AT: Final = whole_number(
    "at", "position of the event; the end of the log by default", default=None, most=INT64_MAX
)
_JOBS: Final = page_size(default=20, most=100, description="largest number of jobs")


async def check_chain(app: App, request: Request) -> Reply:
    """Check the hash chain of the events after a position."""
    found = await app.call(
        check_stretch, app.log, after=_AFTER.read(request), limit=_EVENTS.read(request)
    )
    fault = found.fault
    body: ChainCheck = {
        "object": "events.check",
        "ok": fault is None,
        "events": found.through.position - found.before.position,
        "before": _mark(found.before),
        "through": _mark(found.through),
        "head": _mark(found.head),
        "archived_through": found.archived_through,
        "fault": (
            None if fault is None else {"position": fault.position, "message": fault.message}
        ),
        "has_more": fault is None and found.through.position < found.head.position,
        "next_after": found.through.position,
    }
    return json_reply(body)


async def get_state(app: App, request: Request) -> Reply:
    """Return the state after the event at a position."""
    found = await app.call(
        read_past_state, app.log, at=_AT.read(request), jobs_max=_JOBS.read(request)
    )
    event = found.event
    body: PastStateObject = {
        "object": "events.state",
        "position": found.position,
        "type": None if event is None else event.type,
        "recorded_at": None if event is None else event.recorded_at,
        "head": _mark(found.head),
        "admission": found.admission.value,
        "models": [{"worker": worker, "model": model} for worker, model in found.loaded.items()],
        "counts": dict(Counter(job.status.value for job in found.jobs)),
        "jobs": [job_object(job, None) for job in found.jobs],
        "agents": [
            {
                "agent_id": agent.id,
                "jobs": agent.jobs,
                "open_jobs": agent.open_jobs,
                "context_tokens": agent.context_tokens,
            }
            for agent in found.agents
        ],
        "has_more": found.has_more,
    }
    return json_reply(body)


def _mark(head: LogHead) -> EventMark:
    return {"position": head.position, "hash": head.hash}


CHECK_OPERATIONS: Final = (
    Operation(
        "GET /v1/events/check",
        check_chain,
        id="checkEvents",
        summary="Check the hash chain of a stretch of the log",
        parameters=(_AFTER, _EVENTS),
        reply=ChainCheck,
        access=Access.READ_ALL,
    ),
    Operation(
        "GET /v1/events/state",
        get_state,
        id="getPastState",
        summary="Return the state of the service after an event of the log",
        parameters=(_AT, _JOBS),
        reply=PastStateObject,
        access=Access.READ_ALL,
    ),
)
