"""Rates of the last hour and forecasts of open jobs, both from the pulses of the workers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from domain.engine.control import AdmissionState
from domain.engine.presence import LoadedModels
from domain.engine.rates import RateHistory, RatePoint, Rates, Sample
from domain.engine.workers import TurnState, WorkerPulse, WorkerPulses
from domain.errors import QueueUnavailable
from domain.job.eta import (
    MEASURED_JOBS,
    QUEUED_JOBS_MAX,
    Forecast,
    Pace,
    QueueSnapshot,
    RunningJob,
    forecast_jobs,
    pace_of,
    seconds_until_room,
)
from domain.job.listing import JobViews, QueueViews
from domain.ports import Clock
from domain.values import JobId, Priority, WorkerId

#: Seconds between two samples while no overview is watched.
SAMPLE_S: Final = 5.0


class LiveRates:
    """The rates of all workers and of each one; any thread may ask."""

    def __init__(self, pulses: WorkerPulses, views: JobViews, clock: Clock) -> None:
        self._pulses = pulses
        self._views = views
        self._clock = clock
        self._lock = threading.Lock()
        self._all = RateHistory()
        self._each: dict[WorkerId, RateHistory] = {}

    def sample(self) -> None:
        """Take a sample; call every ``SAMPLE_S``.

        Raises:
            LogUnavailable: The waiting jobs cannot be counted.
        """
        try:
            pulses = self._pulses.alive()
        except QueueUnavailable:
            return
        self.record(pulses, queue_depth=waiting_jobs(self._views, pulses))

    def record(self, pulses: Sequence[WorkerPulse], *, queue_depth: int) -> None:
        """Take a sample of what is known already.

        Args:
            pulses: Of all living workers.
        """
        at_s = self._clock.now().timestamp()
        with self._lock:
            self._all.record(_sample(pulses, at_s, queue_depth))
            alive = {pulse.worker for pulse in pulses}
            self._each = {one: rates for one, rates in self._each.items() if one in alive}
            for pulse in pulses:
                rates = self._each.setdefault(pulse.worker, RateHistory())
                rates.record(_sample([pulse], at_s, len(pulse.waiting)))

    def now(self) -> tuple[Rates, Mapping[WorkerId, Rates]]:
        """Return the rates of all workers together, and of each one."""
        with self._lock:
            return self._all.now(), {one: rates.now() for one, rates in self._each.items()}

    def points(self, *, since_s: float, step_s: int) -> tuple[RatePoint, ...]:
        """Return the rates of all workers; see ``RateHistory.points``."""
        with self._lock:
            return self._all.points(since_s=since_s, step_s=step_s)


def waiting_jobs(views: JobViews, pulses: Sequence[WorkerPulse]) -> int:
    """Return how many jobs wait, in the queues and in the engines."""
    queued = sum(sum(views.waiting(priority).values()) for priority in Priority)
    return queued + sum(len(pulse.waiting) for pulse in pulses)


def _sample(pulses: Sequence[WorkerPulse], at_s: float, queue_depth: int) -> Sample:
    return Sample(
        at_s=at_s,
        counts={pulse.worker: pulse.counts for pulse in pulses if pulse.counts is not None},
        running=sum(pulse.running for pulse in pulses),
        queue_depth=queue_depth,
    )


#: Least age in seconds at which a forecast is computed again.
FRESH_S: Final = 0.25
#: How long the measured pace of ended jobs is used, in seconds.
PACE_FRESH_S: Final = 1.0
#: At most this many open jobs are forecast again at once if a wanted job is missing.
SHORT_QUEUE_JOBS: Final = 100
#: A forecast is reused for at least its own duration times this factor.
REST_FACTOR: Final = 10
#: Running jobs that are read.
RUNNING_MAX: Final = 1000
_NO_WORKER: Final = TurnState(slots=1, interactive_reserved=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    forecasts: Mapping[JobId, Forecast]
    at: float
    took_s: float
    full_s: float = 0.0


@dataclass(slots=True, eq=False)
class LiveEta:
    """``domain.job.eta.EtaSource`` over the log and the turns that the workers report.

    Positions need a reachable broker. Times also need a ready worker and enough measured jobs.

    Attributes:
        queue: Open jobs, and the measured durations of ended ones.
        models: The models of the workers; jobs that wait for another model have no forecast.
        clock: The age of a forecast.
    """

    queue: QueueViews
    pulses: WorkerPulses
    models: LoadedModels
    clock: Clock
    admission: Callable[[], AdmissionState] = lambda: AdmissionState.OPEN
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _last: _Snapshot | None = field(default=None, init=False)
    #: The pace, and when it was measured.
    _pace: tuple[Pace | None, float] | None = field(default=None, init=False)

    def of(self, job_id: JobId) -> Forecast | None:
        """See ``EtaSource.of``."""
        snapshot = self._snapshot(job_id)
        found = snapshot.forecasts.get(job_id)
        return None if found is None else found.after(self.clock.monotonic() - snapshot.at)

    def room_in_s(self, priority: Priority, *, waiting: int, limit: int) -> float | None:
        """See ``EtaSource.room_in_s``."""
        snapshot = self._snapshot(None)
        seconds = seconds_until_room(
            snapshot.forecasts.values(), priority, waiting=waiting, limit=limit
        )
        return None if seconds is None else max(0.0, seconds - self.clock.monotonic() + snapshot.at)

    def full_s(self) -> float:
        """See ``EtaSource.full_s``."""
        return self._snapshot(None).full_s

    def _snapshot(self, wanted: JobId | None) -> _Snapshot:
        with self._lock:
            if self._last is None or not self._is_usable(self._last, wanted):
                self._last = self._forecast_all()
            return self._last

    def _is_usable(self, snapshot: _Snapshot, wanted: JobId | None) -> bool:
        age_s = self.clock.monotonic() - snapshot.at
        if wanted is not None and wanted not in snapshot.forecasts:
            return (
                len(snapshot.forecasts) > SHORT_QUEUE_JOBS and age_s < REST_FACTOR * snapshot.took_s
            )
        return age_s < max(FRESH_S, REST_FACTOR * snapshot.took_s)

    def _forecast_all(self) -> _Snapshot:
        began = self.clock.monotonic()
        try:
            pulses = self.pulses.alive()
        except QueueUnavailable:
            return _Snapshot(forecasts={}, at=began, took_s=0.0)
        state = _turns_of(pulses)
        rows = {row.job: row for pulse in pulses for row in pulse.rows or ()}
        forecasts = forecast_jobs(
            QueueSnapshot(
                state=state or _NO_WORKER,
                queued=[
                    job
                    for priority in Priority
                    for job in self.queue.queued(priority, limit=QUEUED_JOBS_MAX)
                    if job.bound_model is None or not self.models.is_absent(job.bound_model)
                ],
                running=[
                    (replace(job, figures=rows.get(job.id)), self._age_s(job))
                    for job in self.queue.running(limit=RUNNING_MAX)
                ],
                waiting=[job for pulse in pulses for job in pulse.waiting],
                is_paused=self.admission() is not AdmissionState.OPEN,
                pace=None if state is None else self._measured_pace(began),
            )
        )
        return _Snapshot(
            forecasts=forecasts,
            at=began,
            took_s=self.clock.monotonic() - began,
            full_s=min((pulse.cache.full_s for pulse in pulses if pulse.cache), default=0.0),
        )

    def _measured_pace(self, now: float) -> Pace | None:
        if self._pace is None or now - self._pace[1] >= PACE_FRESH_S:
            self._pace = pace_of(self.queue.measured(limit=MEASURED_JOBS)), now
        return self._pace[0]

    def _age_s(self, job: RunningJob) -> float:
        begun = datetime.fromisoformat(job.started_at)
        return (self.clock.now() - begun).total_seconds()


def _turns_of(pulses: Iterable[WorkerPulse]) -> TurnState | None:
    """Return the turns of all workers; ``None`` while none is ready."""
    turns = [pulse.turns for pulse in pulses if pulse.turns is not None]
    if not turns:
        return None
    return replace(
        turns[0],
        slots=sum(one.slots for one in turns),
        interactive_reserved=sum(one.interactive_reserved for one in turns),
        running=tuple(job_id for one in turns for job_id in one.running),
    )
