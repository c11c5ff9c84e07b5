"""``/health/*`` for supervisors, and ``/`` for users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from api.app import App
from api.dialects.replies import Health, Root
from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.sse import json_reply
from api.operate.health_checks import Finding, Level, finding_of, worst

#: Longest time for the answer of a part, in seconds; later it counts as unavailable.
CHECK_TIMEOUT_S: Final = 3.0


async def live(app: App, request: Request) -> Reply:
    """Return that the process answers."""
    del app, request
    health: Health = {"status": "ok", "checks": {}, "reasons": []}
    return json_reply(health)


async def startup(app: App, request: Request) -> Reply:
    """Return whether the log and the broker answer; a model may still be loading."""
    del request
    checks = app.health
    return await _health(app, {"log": checks.check_log, "broker": checks.check_broker})


async def ready(app: App, request: Request) -> Reply:
    """Return whether a generation would be answered, and what would delay it."""
    del request
    checks = app.health
    return await _health(
        app,
        {
            "log": checks.check_log,
            "broker": checks.check_broker,
            "model": checks.check_model,
            "memory": checks.check_memory,
            "disk": checks.check_disk,
            "admission": checks.check_admission,
        },
    )


async def root(app: App, request: Request) -> Reply:
    """Return the name of the service and links; some clients send ``HEAD /`` first."""
    del request
    body: Root = {
        "name": "semantic",
        "version": app.version,
        "model": app.model,
        "links": {
            "openapi": "/openapi.json",
            "models": "/v1/models",
            "jobs": "/v1/jobs",
            "events": "/v1/events",
            "ready": "/health/ready",
            "ui": "/ui",
        },
    }
    return json_reply(body)


async def _health(app: App, checks: Mapping[str, Callable[[], Finding]]) -> Reply:
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


async def _run(check: Callable[[], Finding], app: App) -> Finding:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await app.call(finding_of, check)
    except TimeoutError:
        return Finding(f"no answer within {CHECK_TIMEOUT_S:g} s", Level.UNAVAILABLE)


HEALTH_OPERATIONS: Final = (
    Operation(
        "GET /health/live",
        live,
        id="healthLive",
        summary="Check that the process answers",
        reply=Health,
    ),
    Operation(
        "GET /health/ready",
        ready,
        id="healthReady",
        summary="Check that a generation would be answered; 503 where it would not",
        reply=Health,
    ),
    Operation(
        "GET /health/startup",
        startup,
        id="healthStartup",
        summary="Check that the log and the broker answer",
        reply=Health,
    ),
    Operation("GET /", root, id="root", summary="Return the name and the links", reply=Root),
)
