"""Whose turn it is: the order in which waiting jobs reach the engine. Pure; no threads, no clock.

- Interactive jobs go first, and some slots are never given to batch jobs.
- While both wait, every ``BATCH_EVERY``-th turn is a batch job's, so that batch work always moves.
- Within a queue the agents take turns. An agent that comes new, or comes back, stands behind one
  job of each agent that waits already, and nobody who comes later passes it twice: the agent whose
  turn lies furthest back is next.
- The jobs of one agent start in the order in which they were accepted (ids sort by acceptance).
  Jobs without an agent share one turn.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import Protocol, Self

from domain.values import JobId, Priority

#: While both queues wait, one turn in so many is a batch job's.
BATCH_EVERY = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentQueueState:
    """One line of waiting jobs; ``turns_ago`` is how long ago its turn was, counted in turns."""

    priority: Priority
    agent: str
    turns_ago: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnState:
    """What decides on the next turns beside the jobs that wait; small enough to be told.

    Attributes:
        slots: Jobs that may run at once.
        interactive_reserved: Slots that batch jobs may not take.
        running: The jobs that have a slot.
        lines: The lines that are not empty.
        passed_batch: Turns of interactive jobs since a batch job had one, while some waited.
    """

    slots: int
    interactive_reserved: int
    running: tuple[JobId, ...] = ()
    lines: tuple[AgentQueueState, ...] = ()
    passed_batch: int = 0


@dataclass(slots=True)
class _Line:
    """The waiting jobs of one agent, and the turn after which the next of them may come."""

    since: int
    jobs: list[JobId] = field(default_factory=list)


class TurnOrder:
    """Which waiting job is next, and how many may run.

    Args:
        slots: Jobs that may run at once.
        interactive_reserved: Slots that batch jobs may not take; one is left to them at least.
    """

    def __init__(self, *, slots: int, interactive_reserved: int) -> None:
        assert slots >= 1, "without a slot nothing ever runs"
        self._slots = slots
        self._reserved = max(0, interactive_reserved)
        self._batch_slots = max(1, slots - self._reserved)
        self._lines: dict[Priority, dict[str, _Line]] = {priority: {} for priority in Priority}
        self._waiting: dict[JobId, tuple[Priority, str]] = {}
        self._running: dict[JobId, Priority] = {}
        self._turns = 0
        self._passed_batch = 0
        #: When lines had their last turn that are not there yet; see ``like``.
        self._since: dict[tuple[Priority, str], int] = {}

    @classmethod
    def like(cls, state: TurnState) -> TurnOrder:
        """Return an order in which nobody waits or runs yet, and that goes on as another would."""
        order = cls(slots=state.slots, interactive_reserved=state.interactive_reserved)
        order._turns = max((line.turns_ago for line in state.lines), default=0)
        order._passed_batch = state.passed_batch
        for line in state.lines:
            order._since[line.priority, line.agent] = order._turns - line.turns_ago
        return order

    def state(self) -> TurnState:
        """Return what ``like`` needs to go on from here."""
        lines = tuple(
            AgentQueueState(priority=priority, agent=agent, turns_ago=self._turns - line.since)
            for priority, by_agent in self._lines.items()
            for agent, line in by_agent.items()
        )
        return TurnState(
            slots=self._slots,
            interactive_reserved=self._reserved,
            running=tuple(self._running),
            lines=lines,
            passed_batch=self._passed_batch,
        )

    @property
    def waiting(self) -> int:
        """Return how many jobs wait."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Return how many jobs have a slot."""
        return len(self._running)

    def add(self, job_id: JobId, *, agent: str | None, priority: Priority) -> None:
        """Let a job wait for its turn."""
        assert job_id not in self._waiting, "it waits already"
        assert job_id not in self._running, "it runs already"
        whose = agent or ""
        since = self._since.pop((priority, whose), self._turns)
        line = self._lines[priority].setdefault(whose, _Line(since))
        insort(line.jobs, job_id)
        self._waiting[job_id] = (priority, whose)

    def occupy(self, job_id: JobId, priority: Priority) -> None:
        """Note a job that has a slot already, without a turn."""
        self._running[job_id] = priority

    def next(self) -> JobId | None:
        """Give the next job its slot; ``None`` if nobody waits who may have one now."""
        priority = self._next_queue()
        if priority is None:
            return None
        lines = self._lines[priority]
        # The turn furthest back is next; among equals, the job that was accepted first.
        whose = min(lines, key=lambda name: (lines[name].since, lines[name].jobs[0]))
        job_id = lines[whose].jobs[0]
        self._turns += 1
        lines[whose].since = self._turns
        self.remove(job_id)
        self._running[job_id] = priority
        if priority is Priority.BATCH or not self._lines[Priority.BATCH]:
            self._passed_batch = 0
        else:
            self._passed_batch += 1
        return job_id

    def remove(self, job_id: JobId) -> None:
        """Take a waiting job out; one that does not wait is left alone."""
        if job_id not in self._waiting:
            return
        priority, whose = self._waiting.pop(job_id)
        lines = self._lines[priority]
        lines[whose].jobs.remove(job_id)
        if not lines[whose].jobs:
            del lines[whose]

    def release(self, job_id: JobId) -> None:
        """Free the slot of a job; one that has none is left alone."""
        self._running.pop(job_id, None)

    def _next_queue(self) -> Priority | None:
        if len(self._running) >= self._slots:
            return None
        in_batch = sum(priority is Priority.BATCH for priority in self._running.values())
        batch = bool(self._lines[Priority.BATCH]) and in_batch < self._batch_slots
        if self._lines[Priority.INTERACTIVE]:
            is_due = batch and self._passed_batch >= BATCH_EVERY - 1
            return Priority.BATCH if is_due else Priority.INTERACTIVE
        return Priority.BATCH if batch else None


class QueueTurn(Protocol):
    """A place in the order; ``with`` gives it back."""

    def wait(self) -> bool:
        """Block until it is this job's turn; ``False`` if it was cancelled or all is closing."""
        ...

    def cancel(self) -> None:
        """Wait no longer."""
        ...

    def release(self) -> None:
        """Let the next job have the slot; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class FairScheduler(Protocol):
    """Hands out turns; any thread may ask."""

    def ask(self, job_id: JobId, *, agent: str | None, priority: Priority) -> QueueTurn:
        """Take a place in the order."""
        ...
