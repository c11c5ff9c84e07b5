"""What is to be expected of open jobs, looked at now and then and remembered for a moment."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from domain.errors import QueueUnavailable
from domain.job.eta import (
    LINE_JOBS_MAX,
    MEASURED_JOBS,
    Forecast,
    QueueSnapshot,
    RunningJob,
    forecast_jobs,
    pace_of,
    seconds_until_room,
)
from domain.job.fair_scheduler import TurnState
from domain.job.listing import QueueViews
from domain.job.ports import WorkerPulses
from domain.ports import Clock
from domain.values import JobId, Priority

#: How long a look serves all who ask.
FRESH_S: Final = 0.25
#: A line so short is looked at again for a job that the last look did not see.
SHORT_LINE: Final = 100
#: A longer one only so often: the share of the time that looking may take is one in so many.
REST_FACTOR: Final = 10
#: Running jobs that are looked at.
RUNNING_MAX: Final = 1000
_NOBODY: Final = TurnState(slots=1, interactive_reserved=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    foreseen: Mapping[JobId, Forecast]
    at: float
    took_s: float


class LiveEta:
    """``domain.job.eta.EtaSource`` over the log and what the workers tell of their turns.

    Positions are told while the broker answers. Times are told while a worker is ready, too, and
    enough was measured.

    Args:
        line: What is open, and what was measured.
        pulses: How the turns stand.
        clock: Ages what was seen.
    """

    def __init__(self, *, line: QueueViews, pulses: WorkerPulses, clock: Clock) -> None:
        self._line = line
        self._pulses = pulses
        self._clock = clock
        self._lock = threading.Lock()
        self._last: _Look | None = None

    def of(self, job_id: JobId) -> Forecast | None:
        """See ``Outlook.of``."""
        look = self._look(job_id)
        found = look.foreseen.get(job_id)
        return None if found is None else found.after(self._clock.monotonic() - look.at)

    def room_in_s(self, priority: Priority, *, waiting: int, limit: int) -> float | None:
        """See ``Outlook.room_in_s``."""
        look = self._look(None)
        seconds = seconds_until_room(look.foreseen.values(), priority, waiting=waiting, limit=limit)
        return None if seconds is None else max(0.0, seconds - self._clock.monotonic() + look.at)

    def _look(self, wanted: JobId | None) -> _Look:
        with self._lock:
            if self._last is None or not self._serves(self._last, wanted):
                self._last = self._look_anew()
            return self._last

    def _serves(self, look: _Look, wanted: JobId | None) -> bool:
        age_s = self._clock.monotonic() - look.at
        if wanted is not None and wanted not in look.foreseen:
            return len(look.foreseen) > SHORT_LINE and age_s < REST_FACTOR * look.took_s
        return age_s < max(FRESH_S, REST_FACTOR * look.took_s)

    def _look_anew(self) -> _Look:
        began = self._clock.monotonic()
        try:
            state = self._turns()
        except QueueUnavailable:
            return _Look(foreseen={}, at=began, took_s=0.0)
        foreseen = forecast_jobs(
            QueueSnapshot(
                state=state or _NOBODY,
                queued=[
                    job
                    for priority in Priority
                    for job in self._line.queued(priority, limit=LINE_JOBS_MAX)
                ],
                running=[(job, self._age_s(job)) for job in self._line.running(limit=RUNNING_MAX)],
                pace=None if state is None else pace_of(self._line.measured(limit=MEASURED_JOBS)),
            )
        )
        return _Look(foreseen=foreseen, at=began, took_s=self._clock.monotonic() - began)

    def _turns(self) -> TurnState | None:
        """Return how the turns of all workers stand; ``None`` while none is ready."""
        told = [pulse.turns for pulse in self._pulses.alive() if pulse.turns is not None]
        if not told:
            return None
        return replace(
            told[0],
            slots=sum(one.slots for one in told),
            interactive_reserved=sum(one.interactive_reserved for one in told),
            running=tuple(job_id for one in told for job_id in one.running),
        )

    def _age_s(self, job: RunningJob) -> float:
        begun = datetime.fromisoformat(job.started_at)
        return (self._clock.now() - begun).total_seconds()
