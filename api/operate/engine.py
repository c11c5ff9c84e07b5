"""``/admin/engine``: values of the engine, and the admission of jobs, while the service runs."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Final

from api.app import App
from api.http.bodies import parse_body
from api.http.messages import Access, Reply, Request
from api.http.operation import Operation
from api.http.sse import json_reply
from api.operate.engine_bodies import (
    EngineFigures,
    EngineObject,
    EngineWorker,
    ReasonBody,
    TuningBody,
)
from domain.engine.control import AdmissionState, EngineControl, EngineTuning, EngineValues
from domain.errors import InvalidRequest, QueueUnavailable
from domain.job.ports import WorkerPulse
from domain.model.presence import model_of
from domain.values import Priority

#: The reason is optional, so the body is as well.
_NO_BODY: Final = b"{}"


async def get_engine(app: App, request: Request) -> Reply:
    """Return the values in force and the admission of jobs."""
    del request
    return json_reply(await app.call(lambda: _engine(app.controls.current(), app)))


async def tune_engine(app: App, request: Request) -> Reply:
    """Change values of the engine; all workers apply them within a second."""
    body = parse_body(TuningBody, request.body)
    given = body.model_dump(include=body.model_fields_set)
    if not given:
        raise InvalidRequest("name at least one value; null returns to the setting")

    def change(tuning: EngineTuning) -> EngineTuning:
        return replace(tuning, **given)

    def tune() -> EngineObject:
        return _engine(app.controls.tune(change, correlation_id=request.id), app)

    return json_reply(await app.call(tune))


async def _admit(admission: AdmissionState, app: App, request: Request) -> Reply:
    reason = parse_body(ReasonBody, request.body or _NO_BODY).reason

    def change() -> EngineObject:
        control = app.controls.set_admission(admission, reason=reason, correlation_id=request.id)
        return _engine(control, app)

    return json_reply(await app.call(change))


def _engine(control: EngineControl, app: App) -> EngineObject:
    try:
        pulses = app.pulses.alive()
    except QueueUnavailable:
        pulses = ()
    workers = [_worker(pulse) for pulse in pulses]
    return {
        "object": "engine",
        "admission": control.admission.value,
        "reason": control.reason,
        "since": control.since,
        "values": _figures(control.tuning.over(app.engine_settings)),
        "tuned": [name for name, value in asdict(control.tuning).items() if value is not None],
        "settings": _figures(app.engine_settings),
        "running": sum(worker["running"] for worker in workers),
        "waiting": sum(sum(app.views.waiting(priority).values()) for priority in Priority),
        "workers": workers,
    }


def _worker(pulse: WorkerPulse) -> EngineWorker:
    return {
        "id": pulse.worker,
        "place": pulse.place or None,
        "model": model_of(pulse),
        "state": pulse.state,
        "admission": pulse.admission.value,
        "running": 0 if pulse.turns is None else len(pulse.turns.running),
        "values": None if pulse.values is None else _figures(pulse.values),
    }


def _figures(values: EngineValues) -> EngineFigures:
    return {
        "batch_window_ms": values.batch_window_ms,
        "max_batch_size": values.max_batch_size,
        "gap_max_ms": values.gap_max_ms,
    }


def _admission_operation(
    name: str,
    admission: AdmissionState,
    *,
    operation_id: str,
    summary: str,
) -> Operation:
    return Operation(
        f"POST /admin/{name}",
        partial(_admit, admission),
        id=operation_id,
        summary=summary,
        body=ReasonBody,
        body_required=False,
        example={"reason": "backup"},
        reply=EngineObject,
        stops_work=admission is not AdmissionState.OPEN,
        access=Access.OPERATE,
    )


ENGINE_OPERATIONS: Final = (
    Operation(
        "GET /admin/engine",
        get_engine,
        id="getEngine",
        summary="Return the values of the engine and the admission of jobs",
        reply=EngineObject,
    ),
    Operation(
        "PATCH /admin/engine",
        tune_engine,
        id="tuneEngine",
        summary="Change values of the engine while it runs",
        body=TuningBody,
        example={"batch_window_ms": 20, "max_batch_size": None},
        reply=EngineObject,
        access=Access.OPERATE,
    ),
    _admission_operation(
        "pause",
        AdmissionState.PAUSED,
        operation_id="pauseAdmission",
        summary="Start no more jobs; new ones are accepted and wait",
    ),
    _admission_operation(
        "drain",
        AdmissionState.DRAINING,
        operation_id="drainAdmission",
        summary="Start no more jobs, and refuse new ones",
    ),
    _admission_operation(
        "resume",
        AdmissionState.OPEN,
        operation_id="resumeAdmission",
        summary="Accept and start jobs again",
    ),
)
