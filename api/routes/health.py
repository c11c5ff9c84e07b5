"""``/health/*`` for supervisors, and ``/`` for users."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.replies import json_reply
from api.schemas.replies import Health, Root
from api.services.route_services import StatusService
from domain.errors import ModelNotReady, SemanticError

#: Longest time for the answer of a part, in seconds; later it counts as unavailable.
CHECK_TIMEOUT_S: Final = 3.0
_OK: Final = "ok"

#: States of a model that a request waits for, instead of being refused.
_COMING: Final = ("unloaded", "loading")

Check = Callable[[StatusService], str]


async def live(request: Request, status: StatusService) -> Reply:
    """Return that the process answers."""
    del request, status
    health: Health = {"status": "ok", "checks": {}}
    return json_reply(health)


async def startup(request: Request, status: StatusService) -> Reply:
    """Return whether the log and the broker answer; a model may still be loading."""
    del request
    return await _health(status, {"log": _check_log, "broker": _check_broker})


async def ready(request: Request, status: StatusService) -> Reply:
    """Return whether a generation would be answered."""
    del request
    checks = {"log": _check_log, "broker": _check_broker, "model": _check_model}
    return await _health(status, checks)


async def root(request: Request, status: StatusService) -> Reply:
    """Return the name of the service and links; some clients send ``HEAD /`` first."""
    del request
    body: Root = {
        "name": "semantic",
        "version": status.version,
        "model": status.model,
        "links": {
            "openapi": "/openapi.json",
            "models": "/v1/models",
            "jobs": "/v1/jobs",
            "events": "/v1/events",
            "ready": "/health/ready",
        },
    }
    return json_reply(body)


async def _health(status: StatusService, checks: Mapping[str, Check]) -> Reply:
    results = await asyncio.gather(*(_run(check, status) for check in checks.values()))
    found = dict(zip(checks, results, strict=True))
    is_healthy = all(result in {_OK, *_COMING} for result in results)
    health: Health = {"status": "ok" if is_healthy else "unavailable", "checks": found}
    headers = {} if is_healthy else {"retry-after": "1"}
    return json_reply(health, status=200 if is_healthy else 503, headers=headers)


async def _run(check: Check, status: StatusService) -> str:
    try:
        async with asyncio.timeout(CHECK_TIMEOUT_S):
            return await status.call(check, status)
    except SemanticError as error:
        return error.message
    except TimeoutError:
        return f"no answer within {CHECK_TIMEOUT_S:g} s"


def _check_log(status: StatusService) -> str:
    status.log.head()
    return _OK


def _check_broker(status: StatusService) -> str:
    status.pulses.alive()
    return _OK


def _check_model(status: StatusService) -> str:
    pulses = status.pulses.alive()
    states = {pulse.state for pulse in pulses if pulse.model is not None}
    if "ready" in states:
        return _OK
    for state in _COMING:
        if state in states:
            return state
    loading = any(pulse.state == "loading" for pulse in pulses)
    msg = "a worker is loading the model" if loading else "no worker with a model is alive"
    raise ModelNotReady(msg)


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
        summary="Check that a generation would be answered",
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
