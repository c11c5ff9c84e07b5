"""What the service does now, put together from the workers' reports and the log."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from typing_extensions import TypedDict

from api.loops.live_rates import LiveRates, waiting_jobs
from api.operate.overview_bodies import (
    OverviewObject,
    OverviewWorker,
    RunningRow,
    ServiceState,
    WaitingRow,
)
from api.operate.overview_rows import (
    finished_row,
    rates_object,
    rows_of,
    running_row,
    swap_object,
    total_disk,
    total_memory,
    waiting_rows,
    worker_section,
    worker_state,
)
from domain.engine.control import AdmissionState, EngineControl
from domain.engine.rates import KEPT_S, RatePoint, Rates
from domain.errors import QueueUnavailable
from domain.job.eta import EtaSource, Forecast, awaiting_model
from domain.job.listing import JobViews
from domain.job.ports import WorkerPulse, WorkerPulses, WorkerState
from domain.job.state import Job
from domain.model.presence import LoadedModels
from domain.model.wanted_model import Swap
from domain.ports import Clock
from domain.usage.figures import UsageFigures, UsageGroup, UsageViews
from domain.usage.report import HOUR_S, hour_name, rates_of_hour
from domain.usecases.engine_control import EngineControls
from domain.usecases.model_swaps import ModelSwaps
from domain.usecases.recent_ends import RecentEnds
from domain.values import JobId, JobStatus, Owner, Priority, WorkerId, rfc3339
from ops.adapters.data_dir.free_space import DiskFloor

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

    _last: dict[WorkerId, tuple[WorkerPulse, float]] = field(default_factory=dict)

    def dead(self, alive: Sequence[WorkerPulse], now_s: float) -> list[tuple[WorkerPulse, float]]:
        """Return the workers that have died lately, each with the seconds since its last sign.

        Args:
            alive: Those that live.
            now_s: On a monotonic clock.
        """
        self._last |= {pulse.worker: (pulse, now_s) for pulse in alive}
        self._last = {
            worker: (pulse, at_s)
            for worker, (pulse, at_s) in self._last.items()
            if now_s - at_s < DEAD_SHOWN_S and (at_s == now_s or pulse.state not in _ENDING)
        }
        return [(pulse, now_s - at_s) for pulse, at_s in self._last.values() if at_s < now_s]


@dataclass(slots=True, kw_only=True)
class OverviewService:
    """Shows what the service does now; every method blocks.

    Attributes:
        views: The jobs projection.
        eta: Forecasts for open jobs.
        models: The models of the workers.
        controls: Whether operators let jobs be accepted and started.
        swaps: The wanted model.
        ends: The jobs that have ended lately.
        rates: The rates of the last hour.
        usage: The sums of each hour.
        disk_floor: The free space of the log's disk, and the floor under new work.
        clock: Now.
        version: Of this software.
    """

    views: JobViews
    eta: EtaSource
    pulses: WorkerPulses
    models: LoadedModels
    controls: EngineControls
    swaps: ModelSwaps
    ends: RecentEnds
    rates: LiveRates
    usage: UsageViews
    disk_floor: DiskFloor
    clock: Clock
    version: str
    _seen: SeenWorkers = field(default_factory=SeenWorkers, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def current(self, owner: Owner | None = None) -> OverviewObject:
        """Return the overview, and let the workers report their rows.

        Args:
            owner: Only jobs of this API key are listed.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        with self._lock:
            return self._current(owner)

    def history(self, length_s: int, step_s: int) -> tuple[RatePoint, ...]:
        """Return the rates of the last time, the oldest step first.

        What is longer ago than ``KEPT_S`` comes from the sums of the log, in steps of an hour.

        Args:
            length_s: How far it goes back, in seconds.
            step_s: Length of a step, in seconds.

        Raises:
            LogUnavailable: The log cannot be read.
        """
        now_s = int(self.clock.now().timestamp())
        if length_s <= KEPT_S:
            return self.rates.points(since_s=now_s - length_s, step_s=step_s)
        hours = range((now_s - length_s) // HOUR_S + 1, now_s // HOUR_S + 1)
        names = {hour_name(hour * HOUR_S): hour * HOUR_S for hour in hours}
        sums = self.usage.grouped(UsageGroup.HOUR, since=next(iter(names)))
        return tuple(
            rates_of_hour(sums.get(name, UsageFigures()), at_s, now_s - at_s)
            for name, at_s in names.items()
        )

    def _current(self, owner: Owner | None) -> OverviewObject:
        pulses, broker_problem = self._read_pulses()
        control, swap = self.controls.current(), self.swaps.read_all().open_swap
        depth = waiting_jobs(self.views, pulses)
        self.rates.record(pulses, queue_depth=depth)
        rates, rates_of = self.rates.now()
        workers = self._workers(pulses, rates_of)
        state = _state(workers, control, swap)
        return {
            "object": "overview",
            "at": rfc3339(self.clock.now()),
            "version": self.version,
            "state": state,
            "problem": self._disk_problem()
            or broker_problem
            or _problem(state, workers, control, swap),
            "model": next((one["model"] for one in workers if one["state"] != "dead"), None),
            "admission": control.admission.value,
            "swap": None if swap is None else swap_object(swap, names_files=owner is None),
            "rates": rates_object(
                rates, running=sum(one["running"] for one in workers), queue_depth=depth
            ),
            "memory": total_memory(workers),
            "disk": total_disk(workers),
            "disk_free": self.disk_floor.measure(),
            "workers": workers,
            **self._rows(pulses, owner),
            "finished": [
                finished_row(one.view, one.diagnosis)
                for one in self.ends.latest(FINISHED_MAX, owner)
            ],
        }

    def _read_pulses(self) -> tuple[tuple[WorkerPulse, ...], str | None]:
        try:
            self.pulses.watch()
            return self.pulses.alive(), None
        except QueueUnavailable as error:
            return (), error.message

    def _disk_problem(self) -> str | None:
        why = self.disk_floor.shortage()
        return None if why is None else f"new work is refused: {why}"

    def _workers(
        self, pulses: Sequence[WorkerPulse], rates_of: Mapping[WorkerId, Rates]
    ) -> list[OverviewWorker]:
        found = [
            worker_section(
                pulse, worker_state(pulse), age_s=0.0, rates=rates_of.get(pulse.worker, Rates())
            )
            for pulse in pulses
        ]
        found += [
            worker_section(pulse, "dead", age_s=age_s, rates=Rates())
            for pulse, age_s in self._seen.dead(pulses, self.clock.monotonic())
        ]
        return found

    def _rows(self, pulses: Sequence[WorkerPulse], owner: Owner | None) -> JobRows:
        rows, in_engines = rows_of(pulses), {job.id for pulse in pulses for job in pulse.waiting}
        begun = self.views.page(limit=ROWS_MAX, status=JobStatus.RUNNING, owner=owner).jobs
        queued = self.views.page(limit=ROWS_MAX, status=JobStatus.QUEUED, owner=owner).jobs
        waiting = [(view, self._wait_of(view)) for view in queued]
        waiting += [(view, self.eta.of(view.id)) for view in begun if view.id in in_engines]
        return {
            "running": [
                running_row(view, rows.get(view.id), self.eta.of(view.id))
                for view in reversed(begun)
                if view.id not in in_engines
            ],
            "waiting": waiting_rows(sorted(waiting, key=_start)),
        }

    def _wait_of(self, view: Job) -> Forecast | None:
        if self.models.awaits_model(view):
            return awaiting_model(Priority(view.submitted.priority))
        return self.eta.of(view.id)


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
