"""``/admin/engine``: values of the engine, and the admission of jobs, while the service runs."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from typing import Annotated, Final, Literal, cast

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.http.bodies import NativeBody, whole
from api.http.messages import Access, Request
from api.http.operation import Operation, body_of
from domain.engine.control import (
    BATCH_SIZE_MAX,
    BATCH_WINDOW_MS_MAX,
    GAP_MS_MAX,
    AdmissionState,
    EngineControl,
    EngineValues,
    in_force,
)
from domain.engine.presence import model_of
from domain.engine.workers import WorkerPulse
from domain.errors import InvalidRequest, QueueUnavailable
from domain.events.worker import EngineTuned
from domain.values import Priority

#: Characters of a reason.
REASON_CHARS_MAX = 200
BatchSize = Annotated[int, Field(ge=1, le=BATCH_SIZE_MAX), BeforeValidator(whole)]


class TuningBody(NativeBody):
    """The body of ``PATCH /admin/engine``; ``null`` returns to the setting.

    A value that is not named stays as it is, and unknown names are refused.
    """

    batch_window_ms: Annotated[float, Field(ge=0, le=BATCH_WINDOW_MS_MAX)] | None = None
    max_batch_size: BatchSize | None = None
    gap_max_ms: Annotated[float, Field(ge=0, le=GAP_MS_MAX)] | None = None


class ReasonBody(NativeBody):
    """The body of the operations on the admission of jobs."""

    reason: Annotated[str, Field(min_length=1, max_length=REASON_CHARS_MAX)] | None = None


class EngineFigures(TypedDict):
    """Values of an engine."""

    batch_window_ms: float
    max_batch_size: int
    gap_max_ms: float


class EngineWorker(TypedDict):
    """A worker as it last reported: its values, and how many jobs it runs.

    ``place`` names its data directory and stays the same over restarts. ``model`` is the one that
    it has, loads or swaps to.
    """

    id: str
    place: str | None
    model: str | None
    state: str
    admission: Literal["open", "paused", "draining"]
    running: int
    values: EngineFigures | None


class EngineObject(TypedDict):
    """What operators have changed while the service runs.

    ``values`` are in force: those in ``tuned`` replace the ``settings``. ``running`` and
    ``waiting`` count jobs.
    """

    object: Literal["engine"]
    admission: Literal["open", "paused", "draining"]
    reason: str | None
    since: str | None
    values: EngineFigures
    tuned: list[str]
    settings: EngineFigures
    running: int
    waiting: int
    workers: list[EngineWorker]


#: The reason is optional, so the body is as well.
_NO_BODY: Final = b"{}"


def get_engine(app: App, request: Request) -> EngineObject:
    """Return the values of the engine and the admission of jobs."""
    del request
    return _engine(app.controls.current(), app)


def tune_engine(app: App, request: Request) -> EngineObject:
    """Change values of the engine while it runs."""
    body = body_of(TuningBody, request)
    given = body.model_dump(include=body.model_fields_set)
    if not given:
        raise InvalidRequest("name at least one value; null returns to the setting")

    def change(tuned: EngineTuned) -> EngineTuned:
        return replace(tuned, **given)

    return _engine(app.controls.tune(change, correlation_id=request.id), app)


def pause_admission(app: App, request: Request) -> EngineObject:
    """Start no more jobs; new ones are accepted and wait."""
    return _admit(AdmissionState.PAUSED, app, request)


def drain_admission(app: App, request: Request) -> EngineObject:
    """Start no more jobs, and refuse new ones."""
    return _admit(AdmissionState.DRAINING, app, request)


def resume_admission(app: App, request: Request) -> EngineObject:
    """Accept and start jobs again."""
    return _admit(AdmissionState.OPEN, app, request)


def _admit(admission: AdmissionState, app: App, request: Request) -> EngineObject:
    reason = body_of(ReasonBody, request, empty=_NO_BODY).reason
    control = app.controls.set_admission(admission, reason=reason, correlation_id=request.id)
    return _engine(control, app)


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
        "values": _figures(in_force(control.tuned, app.engine_settings)),
        "tuned": [name for name, value in asdict(control.tuned).items() if value is not None],
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
    return cast("EngineFigures", asdict(values))


_WITH_REASON: Final = partial(
    Operation,
    body=ReasonBody,
    body_required=False,
    example={"reason": "backup"},
    access=Access.OPERATE,
)
ENGINE_OPERATIONS: Final = (
    Operation("GET /admin/engine", get_engine),
    Operation(
        "PATCH /admin/engine",
        tune_engine,
        body=TuningBody,
        example={"batch_window_ms": 20, "max_batch_size": None},
        access=Access.OPERATE,
    ),
    _WITH_REASON("POST /admin/pause", pause_admission, stops_work=True),
    _WITH_REASON("POST /admin/drain", drain_admission, stops_work=True),
    _WITH_REASON("POST /admin/resume", resume_admission),
)
