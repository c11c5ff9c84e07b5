"""``/admin/overview`` and ``/admin/history``: what the service does now, and did lately."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from typing_extensions import TypedDict

from api.app import App
from api.http.messages import Request, StreamReply
from api.http.operation import Operation, choice
from api.http.sse import Frame, Part, follow
from api.loops.forecasts import waiting_jobs
from api.operate.overview_rows import (
    HistoryObject,
    OverviewObject,
    OverviewWorker,
    RunningRow,
    ServiceState,
    WaitingRow,
    finished_row,
    history_point,
    rates_object,
    rows_of,
    running_row,
    total_disk,
    total_memory,
    waiting_rows,
    worker_section,
    worker_state,
)
from api.operate.swaps import swap_object
from domain.audit.recent_ends import RecentEnds
from domain.engine.control import AdmissionState, EngineControl
from domain.engine.rates import KEPT_S, RatePoint, Rates
from domain.engine.workers import WorkerPulse, WorkerState
from domain.errors import QueueUnavailable
from domain.job.eta import Forecast, awaiting_model
from domain.job.listing import JobFilter
from domain.job.state import Job
from domain.job.stranded import awaits_model
from domain.model.wanted_model import Swap
from domain.usage.figures import UsageFigures, UsageGroup
from domain.usage.report import HOUR_S, hour_name, rates_of_hour
from domain.values import JobId, JobStatus, Owner, Priority, WorkerId, rfc3339

#: Rows of running and of waiting jobs, and of those that have ended.
ROWS_MAX: Final = 50
FINISHED_MAX: Final = 30
#: How long a worker that has died is shown, in seconds.
DEAD_SHOWN_S: Final = 60.0
#: States after which the end of a worker is no surprise.
_ENDING: Final = frozenset({WorkerState.DRAINING, WorkerState.SWAPPING, WorkerState.UNLOADED})
#: States of the service that follow from its workers, the first that one of them has.
_BY_WORKER: Final[tuple[ServiceState, ...]] = (
    "stuck",
    "ready",
    "swapping",
    "loading",
    "unloaded",
    "draining",
)

#: Why the service is in a state, where that needs no further figures.
_PROBLEMS: Final[Mapping[ServiceState, str]] = MappingProxyType(
    {
        "paused": "an operator has paused the start of jobs",
        "draining": "an operator drains the service",
        "loading": "a worker loads the model",
        "unloaded": "the idle model is unloaded; the next job loads it",
        "down": "no worker is alive",
    }
)


class JobRows(TypedDict):
    """The rows of open jobs in an ``OverviewObject``."""

    running: list[RunningRow]
    waiting: list[WaitingRow]


@dataclass(slots=True)
class SeenWorkers:
    """The workers that this process has seen, so that a death shows; the caller holds a lock."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    _last: dict[WorkerId, tuple[WorkerPulse, float]] = field(default_factory=dict)

    def dead(self, alive: Sequence[WorkerPulse], now_s: float) -> list[tuple[WorkerPulse, float]]:
        """Return the workers that have died lately, each with the seconds since its last sign.

        Args:
            now_s: On a monotonic clock.
        """
        self._last |= {pulse.worker: (pulse, now_s) for pulse in alive}
        self._last = {
            worker: (pulse, at_s)
            for worker, (pulse, at_s) in self._last.items()
            if now_s - at_s < DEAD_SHOWN_S and (at_s == now_s or pulse.state not in _ENDING)
        }
        return [(pulse, now_s - at_s) for pulse, at_s in self._last.values() if at_s < now_s]


def _seen_workers(app: App) -> SeenWorkers:
    del app
    return SeenWorkers()


def _recent_ends(app: App) -> RecentEnds:
    return RecentEnds(app.log, app.views, app.records.diagnose)


def current_overview(app: App, owner: Owner | None = None) -> OverviewObject:
    """Return the overview, and let the workers report their rows.

    Raises:
        LogUnavailable: The log cannot be read.
    """
    with app.once(_seen_workers).lock:
        return _overview(app, owner)


def rate_points(app: App, length_s: int, step_s: int) -> tuple[RatePoint, ...]:
    """Return the rates of the last time, the oldest step first.

    What is longer ago than ``KEPT_S`` comes from the sums of the log, in steps of an hour.

    Args:
        length_s: How far it goes back, in seconds.

    Raises:
        LogUnavailable: The log cannot be read.
    """
    now_s = int(app.clock.now().timestamp())
    if length_s <= KEPT_S:
        return app.rates.points(since_s=now_s - length_s, step_s=step_s)
    hours = range((now_s - length_s) // HOUR_S + 1, now_s // HOUR_S + 1)
    names = {hour_name(hour * HOUR_S): hour * HOUR_S for hour in hours}
    sums = app.metrics.usage.grouped(UsageGroup.HOUR, since=next(iter(names)))
    return tuple(
        rates_of_hour(sums.get(name, UsageFigures()), at_s, now_s - at_s)
        for name, at_s in names.items()
    )


def _overview(app: App, owner: Owner | None) -> OverviewObject:
    pulses, broker_problem = _read_pulses(app)
    control, swap = app.controls.current(), app.swaps.read_all().open_swap
    depth = waiting_jobs(app.views, pulses)
    app.rates.record(pulses, queue_depth=depth)
    rates, rates_of = app.rates.now()
    workers = _workers(app, pulses, rates_of)
    why = app.disk.shortage()
    disk_problem = why and f"new work is refused: {why}"
    state = _state(workers, control, swap)
    return {
        "object": "overview",
        "at": rfc3339(app.clock.now()),
        "version": app.version,
        "state": state,
        "problem": disk_problem or broker_problem or _problem(state, workers, control, swap),
        "model": next((one["model"] for one in workers if one["state"] != "dead"), None),
        "admission": control.admission.value,
        "swap": None if swap is None else swap_object(swap, names_files=owner is None),
        "rates": rates_object(
            rates, running=sum(one["running"] for one in workers), queue_depth=depth
        ),
        "memory": total_memory(workers),
        "disk": total_disk(workers),
        "disk_free": app.disk.measure(),
        "workers": workers,
        **_rows(app, pulses, owner),
        "finished": [
            finished_row(one.view, one.diagnosis)
            for one in app.once(_recent_ends).latest(FINISHED_MAX, owner)
        ],
    }


def _read_pulses(app: App) -> tuple[tuple[WorkerPulse, ...], str | None]:
    try:
        app.pulses.watch()
        return app.pulses.alive(), None
    except QueueUnavailable as error:
        return (), error.message


def _workers(
    app: App, pulses: Sequence[WorkerPulse], rates_of: Mapping[WorkerId, Rates]
) -> list[OverviewWorker]:
    found = [
        worker_section(
            pulse, worker_state(pulse), age_s=0.0, rates=rates_of.get(pulse.worker, Rates())
        )
        for pulse in pulses
    ]
    found += [
        worker_section(pulse, "dead", age_s=age_s, rates=Rates())
        for pulse, age_s in app.once(_seen_workers).dead(pulses, app.clock.monotonic())
    ]
    return found


def _rows(app: App, pulses: Sequence[WorkerPulse], owner: Owner | None) -> JobRows:
    rows, in_engines = rows_of(pulses), {job.id for pulse in pulses for job in pulse.waiting}
    begun = app.views.page(JobFilter(status=JobStatus.RUNNING, owner=owner), limit=ROWS_MAX).jobs
    queued = app.views.page(JobFilter(status=JobStatus.QUEUED, owner=owner), limit=ROWS_MAX).jobs
    waiting = [(view, _wait_of(app, view)) for view in queued]
    waiting += [(view, app.eta.of(view.id)) for view in begun if view.id in in_engines]
    return {
        "running": [
            running_row(view, rows.get(view.id), app.eta.of(view.id))
            for view in reversed(begun)
            if view.id not in in_engines
        ],
        "waiting": waiting_rows(sorted(waiting, key=_start)),
    }


def _wait_of(app: App, view: Job) -> Forecast | None:
    if awaits_model(view, app.models):
        return awaiting_model(Priority(view.submitted.priority))
    return app.eta.of(view.id)


def _start(job: tuple[Job, Forecast | None]) -> tuple[bool, int, JobId]:
    """Return the place of a waiting job; jobs without a position come last, by acceptance."""
    view, forecast = job
    position = None if forecast is None else forecast.position
    return position is None, position or 0, view.id


def _state(
    workers: Sequence[OverviewWorker], control: EngineControl, swap: Swap | None
) -> ServiceState:
    states = {worker["state"] for worker in workers}
    if swap is not None and swap.before is not None:
        return "swapping"
    found: ServiceState = next((state for state in _BY_WORKER if state in states), "down")
    if found == "ready" and control.admission is not AdmissionState.OPEN:
        return "paused" if control.admission is AdmissionState.PAUSED else "draining"
    return found


def _problem(
    state: ServiceState,
    workers: Sequence[OverviewWorker],
    control: EngineControl,
    swap: Swap | None,
) -> str | None:
    because = f": {control.reason}" if control.reason else ""
    if state == "swapping" and swap is not None:
        return f"swapping to {swap.model}: {swap.state}"
    if state == "stuck":
        return next((worker["step"] for worker in workers if worker["step"]), None)
    if state == "draining" and control.admission is not AdmissionState.DRAINING:
        return "a worker drains"
    text = _PROBLEMS.get(state)
    return f"{text}{because}" if text and state in {"paused", "draining"} else text


#: Seconds between two objects of the stream.
LOOK_S: Final = 1.0


class HistoryRange(StrEnum):
    """How far a history goes back."""

    MINUTES_5 = "5m"
    HOUR = "1h"
    DAY = "24h"


#: Length of a range and of its steps, in seconds.
_SIZES: Final = {
    HistoryRange.MINUTES_5: (300, 5),
    HistoryRange.HOUR: (3600, 60),
    HistoryRange.DAY: (24 * 3600, 3600),
}
_RANGE: Final = choice(
    "range", "how far it goes back", HistoryRange, default=HistoryRange.MINUTES_5
)


def get_overview(app: App, request: Request) -> OverviewObject:
    """Return what the service does now: workers, memory, rates and jobs."""
    return current_overview(app, request.caller.sees)


async def follow_overview(app: App, request: Request) -> StreamReply:
    """Stream what the service does, at most one object a second."""
    # The first read precedes the reply, so that an unavailable log is an error with a status.
    read = partial(app.call, current_overview, app, request.caller.sees)
    shown: dict[str, Any] = {}

    def news(overview: OverviewObject) -> list[Part]:
        content = {name: value for name, value in overview.items() if name != "at"}
        if content == shown:
            return []
        shown.update(content)
        return [Frame(event="overview", data=dict(overview))]

    first = await read()
    pieces = follow(first, read, news, request, look_s=LOOK_S, ping_s=app.ping_s)
    return StreamReply(pieces=pieces)


def get_history(app: App, request: Request) -> HistoryObject:
    """Return the rates of the last minutes, hour or day."""
    wanted = _RANGE.read(request)
    length_s, step_s = _SIZES[wanted]
    points = rate_points(app, length_s, step_s)
    return {
        "object": "history",
        "range": wanted.value,
        "step_s": step_s,
        "points": [history_point(point) for point in points],
    }


OVERVIEW_OPERATIONS: Final = (
    Operation("GET /admin/overview", get_overview),
    Operation("GET /admin/overview/stream", follow_overview, is_streamed=True),
    Operation("GET /admin/history", get_history, parameters=(_RANGE,)),
)
