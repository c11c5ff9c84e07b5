"""Estimate when queued and running jobs start and end. Pure.

The order is that of ``domain.job.fair_scheduler``. A duration is the sum of measured rates: seconds
per computed prompt token, seconds per token that is generated, and the mean length of recent
answers. There is no estimate before the first measurement.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from domain.engine.figures import RowFigures
from domain.engine.workers import TurnState
from domain.job.fair_scheduler import TurnOrder, TurnRequest
from domain.values import JobId, Priority, WaitingFor, WaitingJob

#: Number of recent jobs that the rates are computed from.
MEASURED_JOBS = 64
#: Number of newer jobs after which the weight of a job is halved.
HALF_LIFE_JOBS = 8
#: Waiting jobs of a queue that get an estimate, from its front.
QUEUED_JOBS_MAX = 2000
#: Estimated rest of an answer that is longer than usual, as a share of its length so far.
OVERDUE_SHARE = 0.5
#: Bounds of a ``Retry-After``, in seconds.
RETRY_AFTER_MIN_S = 1
RETRY_AFTER_MAX_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob(TurnRequest):
    """A waiting job, with the facts that its turn and its duration depend on.

    Attributes:
        request_bytes: Length of its canonical request; ``None`` if that was erased.
        bound_model: Registered model that must answer it.
    """

    request_bytes: int | None = None
    max_tokens: int | None = None
    bound_model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job whose attempt has begun.

    Attributes:
        priority: The queue that it came from.
        started_at: RFC 3339 instant of its first attempt.
        figures: What its worker reports of it; ``None`` where it reports nothing yet.
    """

    id: JobId
    priority: Priority
    started_at: str
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int | None = None
    figures: RowFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """The sizes and durations of a completed job."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_ms: float
    decode_ms: float
    request_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Measured rates of jobs.

    Attributes:
        prefill_token_s: Seconds per prompt token that is computed.
        decode_token_s: Seconds per generated token, in a batch.
        completion_tokens: Mean length of an answer, in tokens.
        cached_share: Mean share of a prompt that the cache holds, from 0 to 1.
        byte_tokens: Prompt tokens per byte of a request.
    """

    prefill_token_s: float
    decode_token_s: float
    completion_tokens: float
    cached_share: float
    byte_tokens: float

    def seconds(self, *, uncached_tokens: float, max_tokens: int | None) -> float:
        """Return the seconds that a job takes from its start."""
        generated = self.completion_tokens
        if max_tokens is not None:
            generated = min(generated, max_tokens)
        return self.prefill_token_s * max(0.0, uncached_tokens) + self.decode_token_s * generated

    def of_queued(self, job: QueuedJob) -> float:
        """Return the seconds that a waiting job takes, if the cache holds an average share."""
        prompt_tokens = self.byte_tokens * (job.request_bytes or 0)
        uncached = prompt_tokens * (1 - self.cached_share)
        return self.seconds(uncached_tokens=uncached, max_tokens=job.max_tokens)

    def left_of(self, job: RunningJob, running_s: float) -> float:
        """Return the seconds that a running job still takes, by its tokens where they are known."""
        if job.figures is not None:
            return self._left_of_row(job.figures)
        uncached = job.prompt_tokens - job.cached_tokens
        whole_s = self.seconds(uncached_tokens=uncached, max_tokens=job.max_tokens)
        return max(whole_s - max(0.0, running_s), running_s * OVERDUE_SHARE)

    def _left_of_row(self, row: RowFigures) -> float:
        done = row.generated_tokens
        left = min(max(self.completion_tokens - done, done * OVERDUE_SHARE), row.max_tokens - done)
        return self._seconds_of_row(row, left)

    def most_left_of(self, row: RowFigures) -> float:
        """Return the seconds until the longest answer that a job may give has ended."""
        return self._seconds_of_row(row, row.max_tokens - row.generated_tokens)

    def _seconds_of_row(self, row: RowFigures, tokens: float) -> float:
        token_s = 1 / row.tokens_per_s if row.tokens_per_s else self.decode_token_s
        unread = max(0, row.prompt_tokens - row.read_tokens)
        return self.prefill_token_s * unread + token_s * max(0.0, tokens)


def pace_of(recent: Iterable[MeasuredJob]) -> Pace | None:
    """Return the pace of recent jobs, the newest first; ``None`` if nothing was measured.

    Each rate is a ratio of exponentially weighted sums, so a job counts in proportion to its
    tokens, and a short job does not outweigh a long one.
    """
    sums = dict.fromkeys(("jobs", "read", "read_s", "out", "out_s", "prompt", "cached"), 0.0)
    sized = dict.fromkeys(("prompt", "bytes"), 0.0)
    for age, job in enumerate(recent):
        weight = 0.5 ** (age / HALF_LIFE_JOBS)
        sums["jobs"] += weight
        sums["read"] += weight * max(0, job.prompt_tokens - job.cached_tokens)
        sums["read_s"] += weight * job.prefill_ms / 1000
        sums["out"] += weight * job.completion_tokens
        sums["out_s"] += weight * job.decode_ms / 1000
        sums["prompt"] += weight * job.prompt_tokens
        sums["cached"] += weight * min(job.cached_tokens, job.prompt_tokens)
        if job.request_bytes:
            sized["prompt"] += weight * job.prompt_tokens
            sized["bytes"] += weight * job.request_bytes
    if not (sums["read"] and sums["out"] and sized["bytes"]):
        return None
    return Pace(
        prefill_token_s=sums["read_s"] / sums["read"],
        decode_token_s=sums["out_s"] / sums["out"],
        completion_tokens=sums["out"] / sums["jobs"],
        cached_share=sums["cached"] / sums["prompt"],
        byte_tokens=sized["prompt"] / sized["bytes"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The estimated start and end of an open job.

    Attributes:
        position: Number of waiting jobs that start before it; ``None`` if it runs.
        waiting_for: Why it waits; ``None`` if it runs, or waits for its turn.
        start_s: Seconds until it starts; ``None`` if it runs, or nothing was measured.
        end_s: Seconds until it ends; ``None`` if nothing was measured.
        end_most_s: Seconds until it ends with the longest answer that it may give; ``None`` where
            its worker reports nothing of it.
    """

    priority: Priority
    position: int | None
    start_s: float | None
    end_s: float | None
    waiting_for: WaitingFor | None = None
    end_most_s: float | None = None

    def after(self, seconds: float) -> Forecast:
        """Return the forecast as of ``seconds`` later."""
        return replace(
            self,
            start_s=_less(self.start_s, seconds),
            end_s=_less(self.end_s, seconds),
            end_most_s=_less(self.end_most_s, seconds),
        )


def awaiting_model(priority: Priority) -> Forecast:
    """Return the forecast of a job that waits for a model which no worker has."""
    return Forecast(
        priority=priority, position=None, start_s=None, end_s=None, waiting_for=WaitingFor.MODEL
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """All open jobs.

    Attributes:
        state: The state of the scheduler; its slots are the sequences that compute at once.
        running: The jobs whose attempt has begun, each with the seconds since then.
        waiting: Those of ``running`` that wait in an engine.
        is_paused: Whether no job is started; then no start is estimated.
        pace: Measured rates; ``None`` before the first measurement.
    """

    state: TurnState
    queued: Sequence[QueuedJob]
    running: Sequence[tuple[RunningJob, float]] = ()
    waiting: Sequence[WaitingJob] = ()
    is_paused: bool = False
    pace: Pace | None = None


def forecast_jobs(snapshot: QueueSnapshot) -> dict[JobId, Forecast]:
    """Return the forecast of every open job, if no job arrives or is cancelled meanwhile."""
    simulation = _QueueSimulation(snapshot)
    simulation.place_running()
    simulation.run()
    return simulation.forecasts


def seconds_until_room(
    forecasts: Iterable[Forecast], priority: Priority, *, waiting: int, limit: int
) -> float | None:
    """Return when enough jobs of a queue have started for another one to be accepted.

    Args:
        limit: Most jobs that may wait in it.

    Returns:
        Seconds, 0 if there is room; ``None`` if there is no estimate.
    """
    surplus = waiting - limit
    if surplus < 0:
        return 0.0
    queue = [one for one in forecasts if one.priority is priority and one.position is not None]
    starts = sorted(one.start_s for one in queue if one.start_s is not None)
    return starts[surplus] if surplus < len(starts) else None


def retry_after_s(seconds: float | None, *, most_s: int = RETRY_AFTER_MAX_S) -> int:
    """Return a ``Retry-After``: whole seconds within bounds, the least without an estimate."""
    if seconds is None:
        return RETRY_AFTER_MIN_S
    return max(RETRY_AFTER_MIN_S, math.ceil(min(seconds, most_s)))


class EtaSource(Protocol):
    """Estimates for open jobs; safe to call from any thread."""

    def of(self, job_id: JobId) -> Forecast | None:
        """Return the forecast of a job; ``None`` if there is none."""

    def room_in_s(self, priority: Priority, *, waiting: int, limit: int) -> float | None:
        """Return the result of ``seconds_until_room``."""

    def full_s(self) -> float:
        """Return how long an interactive job has waited for memory, in seconds.

        Of several workers the one with the shortest wait counts; 0 where none reports a wait.
        """


class _QueueSimulation:
    """Runs the scheduler over a snapshot; instants are seconds from now."""

    def __init__(self, snapshot: QueueSnapshot) -> None:
        self.forecasts: dict[JobId, Forecast] = {}
        self._snapshot = snapshot
        self._order = TurnOrder.like(snapshot.state)
        self._ends: list[tuple[float, JobId]] = []
        self._queued = {job.id: job for job in snapshot.queued}
        self._begun = 0

    def place_running(self) -> None:
        """Occupy slots for the jobs that run, or that have their turn and are about to start."""
        pace = self._snapshot.pace
        in_engine = {job.id: job for job in self._snapshot.waiting}
        for job, running_s in self._snapshot.running:
            left_s = None if pace is None else pace.left_of(job, running_s)
            self._occupy(job.id, job.priority, left_s)
            waiting = in_engine.get(job.id)
            self._begun += waiting is not None
            self.forecasts[job.id] = Forecast(
                priority=job.priority,
                position=None if waiting is None else waiting.position,
                start_s=None,
                end_s=left_s,
                waiting_for=None if waiting is None else waiting.waiting_for,
                end_most_s=pace.most_left_of(job.figures) if pace and job.figures else None,
            )
        for job_id in self._snapshot.state.running:
            called = self._queued.get(job_id)
            if called is not None:
                self._occupy(job_id, called.priority, self._begin(called, 0.0))
        for queued in self._queued.values():
            if queued.id not in self.forecasts:
                self._order.add(queued)

    def run(self) -> None:
        """Start one job after another until none waits."""
        now = 0.0
        while self._order.waiting:
            while (job_id := self._order.next()) is not None:
                job = self._queued[job_id]
                self._occupy(job_id, job.priority, self._begin(job, now))
            if not self._ends:
                return
            now, done = heapq.heappop(self._ends)
            self._order.release(done)

    def _begin(self, job: QueuedJob, now: float) -> float | None:
        is_paused = self._snapshot.is_paused
        pace = None if is_paused else self._snapshot.pace
        end_s = None if pace is None else now + pace.of_queued(job)
        self.forecasts[job.id] = Forecast(
            priority=job.priority,
            position=self._begun,
            start_s=None if pace is None else now,
            end_s=end_s,
            waiting_for=WaitingFor.PAUSED if is_paused else None,
        )
        self._begun += 1
        return end_s

    def _occupy(self, job_id: JobId, priority: Priority, end_s: float | None) -> None:
        self._order.occupy(job_id, priority)
        # Without a pace only the order is estimated: all jobs take equally long.
        end = self._begun if end_s is None else end_s
        heapq.heappush(self._ends, (float(end), job_id))


def _less(seconds: float | None, passed: float) -> float | None:
    return None if seconds is None else max(0.0, seconds - passed)
