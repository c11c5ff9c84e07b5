"""``/health/*`` for supervisors, with its checks, and ``/`` for users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.http.messages import Reply, Request, json_reply
from api.http.operation import Operation
from api.ui.page import wants_page
from domain.engine.control import AdmissionState
from domain.engine.workers import WorkerPulse, WorkerState
from domain.errors import QueueUnavailable, SemanticError

#: Share of the memory for contexts from which on the service is degraded. It counts bytes that
#: cannot be freed at once; contexts that are kept and are on the disk do not count.
FILL_DEGRADED: Final = 0.9
OK: Final = "ok"
#: States of a worker whose model a request waits for, instead of being refused.
_COMING: Final = (WorkerState.UNLOADED, WorkerState.LOADING)
_GB: Final = 10**9


class Level(StrEnum):
    """What a finding means for a request."""

    OK = "ok"
    #: It is answered, maybe later than usual.
    DEGRADED = "degraded"
    #: It is refused, or waits without an end in sight.
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check.

    Attributes:
        text: ``ok``, a state, or the problem in one sentence.
    """

    text: str = OK
    level: Level = Level.OK


def worst(findings: Iterable[Finding]) -> Level:
    """Return the level of the service."""
    found = {finding.level for finding in findings}
    return next(level for level in reversed(Level) if level in found | {Level.OK})


def check_log(app: App) -> Finding:
    """The log takes events."""
    app.log.check_writable()
    return Finding()


def check_broker(app: App) -> Finding:
    """The broker answers."""
    app.pulses.alive()
    return Finding()


def check_model(app: App) -> Finding:
    """A worker has the model, or loads it for the next request."""
    states = {pulse.state for pulse in app.pulses.alive() if pulse.model is not None}
    swap = app.swaps.read_all().open_swap
    is_everywhere = swap is not None and not swap.place
    if (
        swap is not None
        and swap.before is not None
        and (is_everywhere or WorkerState.READY not in states)
    ):
        return Finding(f"swapping to {swap.model}: {swap.state}", Level.DEGRADED)
    if WorkerState.READY in states:
        return Finding()
    for state in _COMING:
        if state in states:
            return Finding(state)
    loading = [one for one in app.pulses.alive() if one.state == WorkerState.LOADING]
    if not loading:
        return Finding("no worker with a model is alive", Level.UNAVAILABLE)
    name = loading[0].target or "the model"
    return Finding(f"a worker is loading {name}", Level.UNAVAILABLE)


def check_memory(app: App) -> Finding:
    """Contexts that cannot be freed leave memory for others."""
    fills = [pulse.cache.fill for pulse in _ready_workers(app) if pulse.cache is not None]
    fill = min(fills, default=0.0)
    if fill < FILL_DEGRADED:
        return Finding()
    text = f"{fill:.0%} of the memory for contexts is in use and cannot be freed at once"
    return Finding(text, Level.DEGRADED)


def check_disk(app: App) -> Finding:
    """The disk has space for the log, and takes contexts."""
    if (why := app.disk.shortage()) is not None:
        return Finding(f"new work is refused: {why}", Level.UNAVAILABLE)
    free, wanted = app.disk.measure(), app.disk.cache_min_bytes
    if free < wanted:
        text = (
            f"{free / _GB:.1f} GB are free, less than {wanted / _GB:.1f} GB: "
            "contexts are deleted from the disk"
        )
        return Finding(text, Level.DEGRADED)
    if any(
        pulse.cache is not None and pulse.cache.disk == "paused" for pulse in _ready_workers(app)
    ):
        return Finding("contexts are not saved: the disk fails or is full", Level.DEGRADED)
    return Finding()


def check_admission(app: App) -> Finding:
    """Jobs are accepted and started."""
    if app.draining.is_set():
        return Finding("the api is draining", Level.UNAVAILABLE)
    control = app.controls.current()
    because = f": {control.reason}" if control.reason else ""
    match control.admission:
        case AdmissionState.DRAINING:
            return Finding(f"draining{because}", Level.UNAVAILABLE)
        case AdmissionState.PAUSED:
            return Finding(f"paused{because}", Level.DEGRADED)
        case AdmissionState.OPEN:
            return Finding()


def _ready_workers(app: App) -> list[WorkerPulse]:
    try:
        return [pulse for pulse in app.pulses.alive() if pulse.state == WorkerState.READY]
    except QueueUnavailable:
        return []  # ``check_broker`` finds it


def finding_of(check: Callable[[App], Finding], app: App) -> Finding:
    """Return the finding of a check; an error is one."""
    try:
        return check(app)
    except SemanticError as error:
        return Finding(error.message, Level.UNAVAILABLE)


class Health(TypedDict):
    """The state of the service.

    ``checks`` has ``ok``, a state or the problem of each part; ``reasons`` has the problems.
    """

    status: Literal["ok", "degraded", "unavailable"]
    checks: dict[str, str]
    reasons: list[str]


class Root(TypedDict):
    """The service and its links; ``ollama`` has the words that some clients of Ollama look for."""

    name: str
    version: str
    model: str
    ollama: Literal["Ollama is running"]
    links: dict[str, str]


#: Longest time for the answer of a part, in seconds; later it counts as unavailable.
CHECK_TIMEOUT_S: Final = 3.0


async def health_live(app: App, request: Request) -> Health:
    """Check that the process answers."""
    del app, request
    return {"status": "ok", "checks": {}, "reasons": []}


async def health_startup(app: App, request: Request) -> Reply:
    """Check that the log and the broker answer."""
    del request
    return await _health(app, {"log": check_log, "broker": check_broker})


async def health_ready(app: App, request: Request) -> Reply:
    """Check that a generation would be answered; 503 where it would not."""
    del request
    return await _health(
        app,
        {
            "log": check_log,
            "broker": check_broker,
            "model": check_model,
            "memory": check_memory,
            "disk": check_disk,
            "admission": check_admission,
        },
    )


async def root(app: App, request: Request) -> Root | Reply:
    """Return the name of the service and links, or lead a browser to the page.

    Some clients send ``HEAD /`` first.
    """
    if wants_page(request.path, request.headers):
        return Reply(status=307, headers={"location": "ui"})
    return {
        "name": "semantic",
        "version": app.version,
        "model": app.model,
        "ollama": "Ollama is running",
        "links": {
            "openapi": "/openapi.json",
            "models": "/v1/models",
            "jobs": "/v1/jobs",
            "events": "/v1/events",
            "ready": "/health/ready",
            "ui": "/ui",
        },
    }


async def _health(app: App, checks: Mapping[str, Callable[[App], Finding]]) -> Reply:
    results = await asyncio.gather(*(_run(check, app) for check in checks.values()))
    found = dict(zip(checks, results, strict=True))
    level = worst(results)
    health: Health = {
        "status": level.value,
        "checks": {name: finding.text for name, finding in found.items()},
        "reasons": [
            f"{name}: {finding.text}"
            for name, finding in found.items()
            if finding.level is not Level.OK
        ],
    }
    if level is Level.UNAVAILABLE:
        return json_reply(health, status=503, headers={"retry-after": "1"})
    return json_reply(health)


async def _run(check: Callable[[App], Finding], app: App) -> Finding:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await app.call(finding_of, check, app)
    except TimeoutError:
        return Finding(f"no answer within {CHECK_TIMEOUT_S:g} s", Level.UNAVAILABLE)


HEALTH_OPERATIONS: Final = (
    Operation("GET /health/live", health_live),
    Operation("GET /health/ready", health_ready, reply=Health),
    Operation("GET /health/startup", health_startup, reply=Health),
    Operation("GET /", root),
)
