"""``/admin/status`` and ``/admin/key``: the state of the service, and what a key may do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from api.app import App
from api.http.caller import Access
from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.replies import json_reply
from api.schemas.status import KeyObject, StatusObject
from domain.errors import QueueUnavailable
from domain.values import JobStatus


async def get_status(app: App, request: Request) -> Reply:
    """Return the jobs by status, the head of the log, and figures of the engine."""
    del request
    return json_reply(await app.call(_status, app))


async def get_key(app: App, request: Request) -> Reply:
    """Return the name and the scope of the key of this request."""
    del app
    caller = request.caller
    body: KeyObject = {
        "object": "key",
        "name": caller.name or None,
        "scope": caller.scope.value,
        "may": [access.value for access in Access if caller.may(access)],
        "sees_all": caller.sees is None,
    }
    return json_reply(body)


def _status(app: App) -> StatusObject:
    try:
        pulses = app.pulses.alive()
    except QueueUnavailable:
        pulses = ()
    caches = (asdict(pulse.cache) for pulse in pulses if pulse.cache is not None)
    drafts = (asdict(pulse.drafts) for pulse in pulses if pulse.drafts is not None)
    counts, head = app.views.counts(), app.log.head()
    return {
        "object": "status",
        "version": app.version,
        "model": next((pulse.model.id for pulse in pulses if pulse.model is not None), None),
        "cache": next(caches, None),
        "drafts": next(drafts, None),
        "jobs": {one.value: count for one, count in counts.items()},
        "queue_depth": counts[JobStatus.QUEUED],
        "log": {"position": head.position, "hash": head.hash},
    }


STATUS_OPERATIONS: Final = (
    Operation(
        "GET /admin/status",
        get_status,
        id="getStatus",
        summary="Return the jobs by status, the head of the log, and figures of the engine",
        reply=StatusObject,
    ),
    Operation(
        "GET /admin/key",
        get_key,
        id="getKey",
        summary="Return the name of the key of this request, and what it may do",
        reply=KeyObject,
    ),
)
