"""The order in which waiting jobs reach the engine, see ADR 0054. Pure: no threads, no clock.

- Interactive jobs go first, and some slots are never given to batch jobs.
- While both wait, every ``BATCH_EVERY``-th turn goes to a batch job, so batch work never stops.
- Within a queue the agents take turns: the agent whose last turn is the oldest is next. A new or
  returning agent waits for one job of each waiting agent, and no later agent overtakes it twice.
- Jobs that an earlier worker has begun go before all turns of their queue: a client may have read
  half an answer. They are few, and count as turns of their agents.
- The jobs of one agent start by urgency, and equal ones in the order in which they were accepted
  (ids sort by acceptance).
  Jobs of one API key without an agent share one turn, so they delay no other key's for long.
- Where the slots are few, one line leaves the last of them to the others.
- Jobs whose worker died are suspects. A suspect that emitted no token before is tried first: no
  other job starts until it has computed its first tokens. Suspects of several deaths never run
  beside each other. So a job that kills its workers does not use up the attempts of the others.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from domain.engine.workers import AgentQueueState, TurnState
from domain.events.job import JobSubmitted
from domain.job.ports import JobQueue
from domain.values import JobId, Priority

#: While both queues wait, one turn in so many goes to a batch job.
BATCH_EVERY = 8


class Suspicion(IntEnum):
    """How likely a job is the cause of the deaths of its workers."""

    NONE = 0
    #: A worker died on it before it emitted a token.
    TRIED = 1
    #: Several workers died on it.
    APART = 2


def line_of(agent: str | None, owner: str | None) -> str | None:
    """Return the name of the queue in which a job takes its turns.

    Args:
        agent: Its agent; each one has a queue.
        owner: Name of the API key of its request. The jobs of a key without an agent share a queue,
            whose name no agent has: none contains ``=``.
    """
    if agent is not None or owner is None:
        return agent
    return f"key={owner}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRequest:
    """A job that asks for its turn.

    Attributes:
        urgency: The highest is first in its line.
        has_begun: Whether it precedes those that have not, and goes on also while they are paused.
    """

    id: JobId
    line: str | None
    priority: Priority
    urgency: int = 0
    suspicion: Suspicion = Suspicion.NONE
    has_begun: bool = False


@dataclass(slots=True)
class _AgentQueue:
    """The waiting jobs of one agent, and the number of its last turn."""

    since: int
    jobs: list[JobId] = field(default_factory=list)


class TurnOrder:
    """Decides which waiting job is next, and how many may run.

    The worker starts jobs in this order, and ``domain.job.eta`` runs ahead over it.

    Args:
        slots: Jobs that may run at once.
        interactive_reserved: Slots that batch jobs may not take; one is left to them at least.
        line_slots: Slots that the jobs of one line may take; ``None`` for all.
    """

    def __init__(
        self, *, slots: int, interactive_reserved: int, line_slots: int | None = None
    ) -> None:
        self._reserved = max(0, interactive_reserved)
        self._line_slots = line_slots
        self.set_slots(slots)
        self._queues: dict[Priority, dict[str, _AgentQueue]] = {
            priority: {} for priority in Priority
        }
        self._waiting: dict[JobId, TurnRequest] = {}
        self._running: dict[JobId, TurnRequest] = {}
        #: Waiting jobs that are in no agent's queue.
        self._suspects: set[JobId] = set()
        self._tried: JobId | None = None
        self._turns = 0
        self._passed_batch = 0
        #: Number of the last turn of agents that are not added yet; see ``like``.
        self._since: dict[tuple[Priority, str], int] = {}

    @classmethod
    def like(cls, state: TurnState) -> TurnOrder:
        """Return an order without jobs that continues from the state of another one."""
        order = cls(slots=state.slots, interactive_reserved=state.interactive_reserved)
        order._turns = max((line.turns_ago for line in state.lines), default=0)
        order._passed_batch = state.passed_batch
        for line in state.lines:
            order._since[line.priority, line.agent] = order._turns - line.turns_ago
        return order

    def state(self) -> TurnState:
        """Return the state from which ``like`` continues."""
        lines = tuple(
            AgentQueueState(priority=priority, agent=agent, turns_ago=self._turns - line.since)
            for priority, by_agent in self._queues.items()
            for agent, line in by_agent.items()
        )
        return TurnState(
            slots=self._slots,
            interactive_reserved=self._reserved,
            running=tuple(self._running),
            lines=lines,
            passed_batch=self._passed_batch,
        )

    def set_slots(self, slots: int) -> None:
        """Change how many jobs may run at once; jobs that have a slot keep it."""
        assert slots >= 1, "without a slot nothing ever runs"
        self._slots = slots
        self._batch_slots = max(1, slots - self._reserved)

    @property
    def waiting(self) -> int:
        """Return how many jobs wait."""
        return len(self._waiting)

    def add(self, job: TurnRequest) -> None:
        """Add a waiting job."""
        assert job.id not in self._waiting, "it waits already"
        assert job.id not in self._running, "it runs already"
        self._waiting[job.id] = job
        if job.suspicion:
            self._suspects.add(job.id)
            return
        line = job.line or ""
        since = self._since.pop((job.priority, line), self._turns)
        queue = self._queues[job.priority].setdefault(line, _AgentQueue(since))
        insort(queue.jobs, job.id, key=self._place)

    def _place(self, job_id: JobId) -> tuple[bool, int, JobId]:
        job = self._waiting[job_id]
        return not job.has_begun, -job.urgency, job_id

    def occupy(self, job_id: JobId, priority: Priority) -> None:
        """Add a job that has a slot already, without a turn."""
        self._running[job_id] = TurnRequest(id=job_id, line=None, priority=priority)

    def next(self) -> JobId | None:
        """Give the next job its slot; return ``None`` if no waiting job may have one now."""
        if self._tried is not None or len(self._running) >= self._slots:
            return None
        suspect = self._tried = self._next_suspect()
        job_id = self._take_turn() if suspect is None else suspect
        if job_id is not None:
            job = self._waiting[job_id]
            self.remove(job_id)
            self._running[job_id] = job
        return job_id

    def remove(self, job_id: JobId) -> None:
        """Remove a waiting job; does nothing if the job does not wait."""
        if job_id not in self._waiting:
            return
        job = self._waiting.pop(job_id)
        if job.suspicion:
            self._suspects.remove(job_id)
            return
        queues, line = self._queues[job.priority], job.line or ""
        queues[line].jobs.remove(job_id)
        if not queues[line].jobs:
            del queues[line]

    def release(self, job_id: JobId) -> None:
        """Free the slot of a job; does nothing if it has none."""
        self._running.pop(job_id, None)
        self.clear(job_id)

    def clear(self, job_id: JobId) -> None:
        """End the trial of a job: other jobs may start beside it."""
        if self._tried == job_id:
            self._tried = None

    def _next_suspect(self) -> JobId | None:
        """Return the newest suspect that may start now."""
        if not self._suspects:
            return None
        runs_apart = any(job.suspicion is Suspicion.APART for job in self._running.values())
        has_batch_slot = self._has_batch_slot()
        for job_id in sorted(self._suspects, reverse=True):
            job = self._waiting[job_id]
            if job.suspicion is Suspicion.APART and runs_apart:
                continue
            if job.priority is Priority.INTERACTIVE or has_batch_slot:
                return job_id
        return None

    def _take_turn(self) -> JobId | None:
        """Count a turn of the agent that is next; return its first job."""
        batch = self._ready_lines(Priority.BATCH) if self._has_batch_slot() else ()
        interactive = self._ready_lines(Priority.INTERACTIVE)
        if not batch and not interactive:
            return None
        is_due = batch and self._passed_batch >= BATCH_EVERY - 1
        priority = Priority.BATCH if is_due or not interactive else Priority.INTERACTIVE
        queues = self._queues[priority]
        # After what has begun, the agent with the oldest turn is next; among equals, the job that
        # was accepted first.
        queue = min(
            (queues[line] for line in (batch if priority is Priority.BATCH else interactive)),
            key=lambda one: (not self._waiting[one.jobs[0]].has_begun, one.since, one.jobs[0]),
        )
        self._turns += 1
        queue.since = self._turns
        passes_batch = priority is Priority.INTERACTIVE and self._queues[Priority.BATCH]
        self._passed_batch = self._passed_batch + 1 if passes_batch else 0
        return queue.jobs[0]

    def _has_batch_slot(self) -> bool:
        in_batch = sum(job.priority is Priority.BATCH for job in self._running.values())
        return in_batch < self._batch_slots

    def _ready_lines(self, priority: Priority) -> Collection[str]:
        """Return the lines that wait and may take one more slot; jobs without a line may always."""
        waiting = self._queues[priority]
        if self._line_slots is None:
            return waiting
        taken = Counter(job.line for job in self._running.values() if job.line)
        return [line for line in waiting if taken[line] < self._line_slots]


class QueueTurn(Protocol):
    """A place in the order, and later a slot."""

    def wait(self) -> bool:
        """Block until the turn of the job; ``False`` if it was cancelled or the worker stops."""

    def cancel(self) -> None:
        """End the wait."""

    def clear(self) -> None:
        """End the trial of a suspect: other jobs may start beside it."""

    def release(self) -> None:
        """Give back the place or the slot; a second call does nothing."""


class FairScheduler(Protocol):
    """Gives turns to jobs; safe to call from any thread."""

    def request_turn(self, job: TurnRequest) -> QueueTurn:
        """Take a place in the order."""


def enqueue(queue: JobQueue, job_id: JobId, submitted: JobSubmitted) -> bool:
    """Enqueue a job as it was submitted; see ``JobQueue.enqueue``."""
    return queue.enqueue(
        job_id,
        submitted.priority,
        line=line_of(submitted.agent, submitted.owner),
        model=submitted.bound_model,
        urgency=submitted.urgency,
    )
