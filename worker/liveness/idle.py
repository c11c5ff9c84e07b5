"""A worker without a model: when it gives up its model, and when it needs one again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from domain.engine.workers import WorkerPulse, WorkerPulses, WorkerState
from domain.errors import Unavailable
from domain.events.worker import WorkerStopped
from domain.job.listing import JobFilter, JobViews
from domain.log.codec import decode_recorded
from domain.log.ports import EventLog
from domain.values import JobStatus, ModelCard, Priority, StreamName, WorkerId
from worker.liveness.pulse import WorkerMetrics
from worker.recording.worker_event_recorder import last_load
from worker.turn_scheduler import ActiveJobs

#: Seconds between two checks whether the model is idle.
IDLE_CHECK_S = 1.0
#: Seconds between two looks at the waiting jobs.
DEMAND_S = 0.1
#: Most running jobs that one look reads.
RUNNING_MAX = 100


class IdleModel:
    """Measures how long no job and no count of tokens has used the model.

    Args:
        ttl_s: Seconds after the last use from which on the model is due to be unloaded; 0: never.
        clock: Seconds; stands still while the machine sleeps.
    """

    def __init__(
        self, ttl_s: float, active: ActiveJobs, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ttl_s = ttl_s
        self._active = active
        self._clock = clock
        self._used_at_s = clock()

    def record_use(self) -> None:
        """Start the time anew."""
        self._used_at_s = self._clock()

    def is_due(self) -> bool:
        """Return whether the model is to be unloaded; call every ``IDLE_CHECK_S``."""
        if self._active.take_is_used():
            self.record_use()
        return self._ttl_s > 0 and self._clock() - self._used_at_s >= self._ttl_s


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadedModel:
    """A worker that has no model in memory, and takes no job."""

    worker: WorkerId
    pid: int
    card: ModelCard
    pulses: WorkerPulses
    views: JobViews
    starts_jobs: Callable[[], bool]
    counts_wait: Callable[[], bool]
    metrics: WorkerMetrics
    embeds: tuple[str, ...] = ()

    def beat(self) -> None:
        """Publish a pulse; call it every second."""
        state = WorkerState.UNLOADED.value
        pulse = WorkerPulse(
            worker=self.worker,
            pid=self.pid,
            state=state,
            model=self.card,
            place=self.metrics.place,
            host=self.metrics.host,
            embeds=self.embeds,
            metrics=self.metrics.read(),
        )
        self.pulses.beat(pulse)

    def wait(self, stop: threading.Event) -> bool:
        """Wait until the model is needed.

        Returns:
            ``False`` if ``stop`` was set first.
        """
        # Another worker takes a job within milliseconds if it has room for it.
        was_needed = False
        while not stop.wait(DEMAND_S):
            try:
                is_needed = self.is_needed()
            except Unavailable:
                continue
            if is_needed and was_needed:
                return True
            was_needed = is_needed
        return False

    def is_needed(self) -> bool:
        """Return whether a job or a count waits for this worker."""
        if self.counts_wait():
            return True
        # Jobs that wait for another model do not need this one.
        mine = {None, self.card.id, *self.embeds}
        waiting = (self.views.waiting(priority).keys() & mine for priority in Priority)
        if any(waiting) and self.starts_jobs():
            return True
        running = self.views.page(JobFilter(status=JobStatus.RUNNING), limit=RUNNING_MAX).jobs
        # A running job belongs to a live worker, or to one that has died.
        return any(view.submitted.bound_model in mine for view in running) and not any(
            pulse.state == WorkerState.READY for pulse in self.pulses.alive()
        )


def unloaded_by(previous: WorkerId | None, log: EventLog) -> ModelCard | None:
    """Return the model that the previous worker of this machine unloaded because it was idle.

    Returns:
        ``None`` if the previous worker ended for another reason.
    """
    events = () if previous is None else log.load(StreamName(previous))
    stops = [event for event in events if event.type == WorkerStopped.__name__]
    if not stops:
        return None
    stopped = decode_recorded(stops[-1])
    if not isinstance(stopped, WorkerStopped) or stopped.unloaded is None:
        return None
    loaded = last_load(stopped.unloaded, log)
    return None if loaded is None else loaded.card
