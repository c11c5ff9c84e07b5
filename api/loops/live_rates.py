"""Samples what the workers do, for the rates of the last hour."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

from domain.engine.rates import RateHistory, RatePoint, Rates, Sample
from domain.errors import QueueUnavailable
from domain.job.listing import JobViews
from domain.job.ports import WorkerPulse, WorkerPulses
from domain.ports import Clock
from domain.values import Priority, WorkerId

#: Seconds between two samples while no overview is watched.
SAMPLE_S: Final = 5.0


class LiveRates:
    """The rates of all workers and of each one; any thread may ask.

    Args:
        pulses: Heartbeats of the workers.
        views: The jobs projection.
        clock: The times of the samples.
    """

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
            queue_depth: Waiting jobs.
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
