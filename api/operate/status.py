"""``/admin/status``, ``/admin/key``, ``/admin/usage`` and ``/metrics``: figures of the service."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from api.app import App
from api.http.messages import Access, Reply, Request
from api.http.operation import Operation
from api.http.parameters import choice, moment, page_size
from api.http.sse import json_reply
from api.operate.engine_bodies import KeyObject, StatusObject
from api.operate.overview_bodies import UsageObject
from domain.errors import QueueUnavailable
from domain.usage.figures import UsageGroup
from domain.usage.report import report_usage
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


#: A report by hour of 30 days has 720 rows.
_ROWS_MAX: Final = 10_000

_BY: Final = choice("by", "what the rows are", UsageGroup, default=UsageGroup.DAY)
_SINCE: Final = moment("since", "count from the hour of this instant on; from the first by default")
_LIMIT: Final = page_size(default=1000, most=_ROWS_MAX)


async def get_usage(app: App, request: Request) -> Reply:
    """Return the sums of ended jobs."""
    report = await app.call(
        report_usage,
        app.metrics.usage,
        _BY.read(request),
        since=_SINCE.read(request),
        limit=_LIMIT.read(request),
        owner=request.caller.sees,
    )
    return json_reply(report.as_json())


USAGE_OPERATIONS: Final = (
    Operation(
        "GET /admin/usage",
        get_usage,
        id="getUsage",
        summary="Return jobs, tokens and times by hour, day, agent or model",
        parameters=(_BY, _SINCE, _LIMIT),
        reply=UsageObject,
    ),
)


async def get_metrics(app: App, request: Request) -> Reply:
    """Return all metrics, in the format that the scraper prefers."""
    body, content_type = await app.call(app.metrics_page.scrape, request.headers.get("accept"))
    return Reply(body=body, content_type=content_type)


METRIC_OPERATIONS: Final = (
    Operation(
        "GET /metrics",
        get_metrics,
        id="metrics",
        summary="Return the metrics as Prometheus or OpenMetrics text",
        media="text/plain",
        access=Access.READ_ALL,
    ),
)
