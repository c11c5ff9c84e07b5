"""Estimate when queued and running jobs start and end. Pure.

The order is that of ``domain.job.fair_scheduler``. A duration is the sum of measured rates: seconds
per prompt token that is read, seconds per token that is generated, and the mean length of recent
answers. There is no estimate before the first measurement.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from domain.job.fair_scheduler import TurnOrder, TurnState
from domain.values import JobId, Priority

#: Recent jobs that rates are made of.
MEASURED_JOBS = 64
#: After so many newer jobs, what a job took counts half.
HALF_LIFE_JOBS = 8
#: Waiting jobs of a queue that are looked at; of those behind nothing is told.
LINE_JOBS_MAX = 2000
#: A job that runs longer than expected is given this share of what was expected.
OVERDUE_SHARE = 0.1
#: Bounds of a ``Retry-After``, in seconds.
RETRY_AFTER_MIN_S = 1
RETRY_AFTER_MAX_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """What decides when a waiting job gets its turn, and how long it will take.

    Attributes:
        id: The job.
        agent: Who it is for.
        priority: Which queue.
        request_bytes: Length of its canonical request; ``None`` if that was erased.
        max_tokens: Most tokens to generate.
    """

    id: JobId
    agent: str | None
    priority: Priority
    request_bytes: int | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A job whose attempt has begun.

    Attributes:
        id: The job.
        priority: Which queue it came from.
        started_at: RFC 3339 instant of its first attempt.
        prompt_tokens: Length of its prompt.
        cached_tokens: Part of it that need not be read.
        max_tokens: Most tokens to generate.
    """

    id: JobId
    priority: Priority
    started_at: str
    prompt_tokens: int
    cached_tokens: int
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredJob:
    """What a job took that has its answer."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    prefill_ms: float
    decode_ms: float
    request_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast jobs go, as measured.

    Attributes:
        prefill_token_s: Seconds for each token of a prompt that is read.
        decode_token_s: Seconds for each token that is said, beside the others of its batch.
        completion_tokens: What a job says on average.
        known_share: Part of a prompt that need not be read, from 0 to 1.
        byte_tokens: Tokens of the prompt for each byte of a request.
    """

    prefill_token_s: float
    decode_token_s: float
    completion_tokens: float
    known_share: float
    byte_tokens: float

    def seconds(self, *, unread_tokens: float, max_tokens: int | None) -> float:
        """Return how long a job takes once it has its place."""
        said = self.completion_tokens
        if max_tokens is not None:
            said = min(said, max_tokens)
        return self.prefill_token_s * max(0.0, unread_tokens) + self.decode_token_s * said

    def of_queued(self, job: QueuedJob) -> float:
        """Return how long a waiting job will take; how much it need not read is a guess."""
        prompt_tokens = self.byte_tokens * (job.request_bytes or 0)
        unread = prompt_tokens * (1 - self.known_share)
        return self.seconds(unread_tokens=unread, max_tokens=job.max_tokens)

    def left_of(self, job: RunningJob, running_s: float) -> float:
        """Return how long a running job will still take."""
        unread = job.prompt_tokens - job.cached_tokens
        whole_s = self.seconds(unread_tokens=unread, max_tokens=job.max_tokens)
        return max(whole_s - max(0.0, running_s), whole_s * OVERDUE_SHARE)


def pace_of(recent: Iterable[MeasuredJob]) -> Pace | None:
    """Return the pace of recent jobs, the newest first; ``None`` if they tell nothing.

    Each is a ratio of exponentially weighted sums, so that a job counts by what there was to
    measure and a short one cannot outshout a long one.
    """
    sums = dict.fromkeys(("jobs", "read", "read_s", "said", "said_s", "prompt", "known"), 0.0)
    sized = dict.fromkeys(("prompt", "bytes"), 0.0)
    for age, job in enumerate(recent):
        weight = 0.5 ** (age / HALF_LIFE_JOBS)
        sums["jobs"] += weight
        sums["read"] += weight * max(0, job.prompt_tokens - job.cached_tokens)
        sums["read_s"] += weight * job.prefill_ms / 1000
        sums["said"] += weight * job.completion_tokens
        sums["said_s"] += weight * job.decode_ms / 1000
        sums["prompt"] += weight * job.prompt_tokens
        sums["known"] += weight * min(job.cached_tokens, job.prompt_tokens)
        if job.request_bytes:
            sized["prompt"] += weight * job.prompt_tokens
            sized["bytes"] += weight * job.request_bytes
    if not (sums["read"] and sums["said"] and sized["bytes"]):
        return None
    return Pace(
        prefill_token_s=sums["read_s"] / sums["read"],
        decode_token_s=sums["said_s"] / sums["said"],
        completion_tokens=sums["said"] / sums["jobs"],
        known_share=sums["known"] / sums["prompt"],
        byte_tokens=sized["prompt"] / sized["bytes"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What is to be expected of an open job.

    Attributes:
        priority: Which queue it is of.
        position: How many waiting jobs begin before it; ``None`` if it runs.
        start_s: Seconds until it begins; ``None`` if it runs, or nothing was measured.
        end_s: Seconds until it is done; ``None`` if nothing was measured.
    """

    priority: Priority
    position: int | None
    start_s: float | None
    end_s: float | None

    def after(self, seconds: float) -> Forecast:
        """Return the same as it looks a while later."""
        return replace(self, start_s=_less(self.start_s, seconds), end_s=_less(self.end_s, seconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSnapshot:
    """All that is open.

    Attributes:
        state: How the turns stand; its slots are the places that compute at once.
        queued: The jobs that wait.
        running: The jobs that run, and for how many seconds.
        pace: How fast jobs go, if that is known.
    """

    state: TurnState
    queued: Sequence[QueuedJob]
    running: Sequence[tuple[RunningJob, float]] = ()
    pace: Pace | None = None


def foresee(line: QueueSnapshot) -> dict[JobId, Forecast]:
    """Return what is to be expected of every open job, if nobody comes or goes meanwhile."""
    ahead = _Ahead(line)
    ahead.place_running()
    ahead.run()
    return ahead.foreseen


def seconds_until_room(
    foreseen: Iterable[Forecast], priority: Priority, *, waiting: int, limit: int
) -> float | None:
    """Return when so many jobs of a queue have begun that another finds room.

    Args:
        foreseen: What is to be expected.
        priority: The queue.
        waiting: Jobs that wait in it.
        limit: Most that may.

    Returns:
        Seconds, 0 if there is room; ``None`` if it cannot be known.
    """
    surplus = waiting - limit
    if surplus < 0:
        return 0.0
    queue = [one for one in foreseen if one.priority is priority and one.position is not None]
    starts = sorted(one.start_s for one in queue if one.start_s is not None)
    return starts[surplus] if surplus < len(starts) else None


def retry_after_s(seconds: float | None, *, most_s: int = RETRY_AFTER_MAX_S) -> int:
    """Return a ``Retry-After``: whole seconds within bounds, the least where nothing is known."""
    if seconds is None:
        return RETRY_AFTER_MIN_S
    return max(RETRY_AFTER_MIN_S, math.ceil(min(seconds, most_s)))


class EtaSource(Protocol):
    """Tells what is to be expected of open jobs; any thread may ask."""

    def of(self, job_id: JobId) -> Forecast | None:
        """Return what is to be expected of a job; ``None`` if nothing is known."""
        ...

    def room_in_s(self, priority: Priority, *, waiting: int, limit: int) -> float | None:
        """Return what ``seconds_until_room`` says."""
        ...


class _Ahead:
    """The turns of one line, taken in advance; instants are seconds from now."""

    def __init__(self, line: QueueSnapshot) -> None:
        self.foreseen: dict[JobId, Forecast] = {}
        self._line = line
        self._order = TurnOrder.like(line.state)
        self._ends: list[tuple[float, JobId]] = []
        self._queued = {job.id: job for job in line.queued}
        self._begun = 0

    def place_running(self) -> None:
        """Put those where they are that run, or were called and are about to."""
        pace = self._line.pace
        for job, running_s in self._line.running:
            left_s = None if pace is None else pace.left_of(job, running_s)
            self._occupy(job.id, job.priority, left_s)
            self.foreseen[job.id] = Forecast(
                priority=job.priority, position=None, start_s=None, end_s=left_s
            )
        for job_id in self._line.state.running:
            called = self._queued.get(job_id)
            if called is not None:
                self._occupy(job_id, called.priority, self._begin(called, 0.0))
        for waiting in self._queued.values():
            if waiting.id not in self.foreseen:
                self._order.add(waiting.id, agent=waiting.agent, priority=waiting.priority)

    def run(self) -> None:
        """Take one turn after the other until nobody waits."""
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
        pace = self._line.pace
        end_s = None if pace is None else now + pace.of_queued(job)
        self.foreseen[job.id] = Forecast(
            priority=job.priority,
            position=self._begun,
            start_s=None if pace is None else now,
            end_s=end_s,
        )
        self._begun += 1
        return end_s

    def _occupy(self, job_id: JobId, priority: Priority, end_s: float | None) -> None:
        self._order.occupy(job_id, priority)
        # Without a pace only the order is told: each job takes as long as any other.
        end = self._begun if end_s is None else end_s
        heapq.heappush(self._ends, (float(end), job_id))


def _less(seconds: float | None, passed: float) -> float | None:
    return None if seconds is None else max(0.0, seconds - passed)
