"""``/admin/status``, ``/admin/key`` and ``/admin/usage``: figures of the service."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final, Literal, cast

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.http.messages import Access, Request
from api.http.operation import Operation, choice, moment, page_size
from api.operate.events import EventMark, mark_of
from domain.errors import QueueUnavailable
from domain.usage.figures import UsageGroup
from domain.usage.report import report_usage
from domain.values import JobStatus


class UsageMeans(TypedDict):
    """Mean durations in milliseconds; ``null`` where none is known."""

    queue: float | None
    restore: float | None
    prefill: float | None
    first_token: float | None
    decode: float | None
    total: float | None


class UsageSums(TypedDict):
    """Sums of ended jobs; an empty ``name`` stands for jobs without an agent or a model."""

    name: str
    jobs: int
    completed: int
    failed: int
    cancelled: int
    expired: int
    attempts: int
    failed_attempts: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    kept_tokens: int
    hits: int
    ram_tokens: int
    disk_tokens: int
    misses_diverged: int
    misses_gone: int
    misses_model_changed: int
    missed_tokens: int
    started_jobs: int
    timed_jobs: int
    cached_ratio: float
    mean_ms: UsageMeans
    decode_tokens_per_s: float | None


class UsageObject(TypedDict):
    """A report of usage; ``total`` has the rows that the limit leaves out, too."""

    object: Literal["usage"]
    by: str
    since: str | None
    data: list[UsageSums]
    total: UsageSums
    has_more: bool


class StatusObject(TypedDict):
    """What ``semantic status`` prints.

    ``jobs`` counts the jobs by status. ``model``, ``cache`` and ``drafts`` are of the first worker
    that reports them.
    """

    object: Literal["status"]
    version: str
    model: str | None
    cache: dict[str, Any] | None
    drafts: dict[str, Any] | None
    jobs: dict[str, int]
    queue_depth: int
    log: EventMark


class KeyObject(TypedDict):
    """The key of a request.

    ``name`` is ``null`` without keys. ``may`` has what the operations of the document name in
    ``x-semantic-access``. With ``sees_all``, lists and sums hold the things of all keys.
    """

    object: Literal["key"]
    name: str | None
    scope: Literal["admin", "own", "read"]
    may: list[str]
    sees_all: bool


async def get_key(app: App, request: Request) -> KeyObject:
    """Return the name of the key of this request, and what it may do."""
    del app
    caller = request.caller
    return {
        "object": "key",
        "name": caller.name or None,
        "scope": caller.scope.value,
        "may": [access.value for access in Access if caller.may(access)],
        "sees_all": caller.sees is None,
    }


def get_status(app: App, request: Request) -> StatusObject:
    """Return the jobs by status, the head of the log, and figures of the engine."""
    del request
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
        "log": mark_of(head),
    }


STATUS_OPERATIONS: Final = (
    Operation("GET /admin/status", get_status),
    Operation("GET /admin/key", get_key),
)


#: A report by hour of 30 days has 720 rows.
_ROWS_MAX: Final = 10_000

_BY: Final = choice("by", "what the rows are", UsageGroup, default=UsageGroup.DAY)
_SINCE: Final = moment("since", "count from the hour of this instant on; from the first by default")
_LIMIT: Final = page_size(default=1000, most=_ROWS_MAX)


def get_usage(app: App, request: Request) -> UsageObject:
    """Return jobs, tokens and times by hour, day, agent or model."""
    report = report_usage(
        app.metrics.usage,
        _BY.read(request),
        since=_SINCE.read(request),
        limit=_LIMIT.read(request),
        owner=request.caller.sees,
    )
    return cast("UsageObject", report)


USAGE_OPERATIONS: Final = (
    Operation("GET /admin/usage", get_usage, parameters=(_BY, _SINCE, _LIMIT)),
)
