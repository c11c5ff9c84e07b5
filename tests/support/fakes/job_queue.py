"""The job queue in memory: a queue per agent, jobs held by workers, heartbeats."""

from __future__ import annotations

import threading
from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass, field

from domain.values import JobId, Priority
from ops.adapters.redis.dramatiq_queue import HEARTBEAT_TIMEOUT_MS
from tests.support.fakes.outage import Outage
from tests.support.fakes.time import FakeClock

#: The worker in tests with a single worker.
ENGINE = "engine-0"


@dataclass
class QueueTable:
    """The Redis state of one queue, by the names of ``ops.adapters.redis.dramatiq_queue``."""

    lines: dict[str, list[JobId]] = field(default_factory=dict)
    ring: list[str] = field(default_factory=list)
    called: list[JobId] = field(default_factory=list)
    messages: set[JobId] = field(default_factory=set)
    in_hand: dict[str, set[JobId]] = field(default_factory=dict)

    def leave(self, job_id: JobId, agent: str) -> None:
        """Remove a job from its agent's queue; the last one removes the agent."""
        self.lines[agent].remove(job_id)
        if not self.lines[agent]:
            del self.lines[agent]

    def bring_back(self, job_id: JobId) -> None:
        """Put a job with a message before all others."""
        if job_id in self.messages:
            self.called[:] = [job_id, *(one for one in self.called if one != job_id)]


@dataclass
class QueueTables:
    """The whole state; ``copy.deepcopy`` makes a snapshot."""

    queues: dict[Priority, QueueTable] = field(
        default_factory=lambda: {priority: QueueTable() for priority in Priority}
    )
    heartbeats: dict[str, float] = field(default_factory=dict)


class FakeJobQueue:
    """``JobQueue``; calls of the worker's side name a consumer.

    Args:
        outage: Whether the broker can be reached; the worker's side does not look.
        clock: Clock of the heartbeats; without one no heartbeat expires.

    Attributes:
        tables: What a broker that loses its data loses.
    """

    def __init__(self, outage: Outage | None = None, clock: FakeClock | None = None) -> None:
        self._outage = outage or Outage()
        self._clock = clock or FakeClock()
        self._lock = threading.Lock()
        self.tables = QueueTables()

    def enqueue(self, job_id: JobId, priority: Priority, *, agent: str | None = None) -> bool:
        self._outage.check()
        with self._lock:
            table, line = self.tables.queues[priority], agent or ""
            if job_id in table.messages and self._is_somewhere(job_id, priority, line):
                return False
            table.messages.add(job_id)
            insort(table.lines.setdefault(line, []), job_id)
            if line not in table.ring:
                table.ring.append(line)
            return True

    def remove(self, job_id: JobId, priority: Priority, *, agent: str | None = None) -> bool:
        self._outage.check()
        with self._lock:
            table, line = self.tables.queues[priority], agent or ""
            if job_id in table.lines.get(line, []):
                table.leave(job_id, line)
                if line not in table.lines:
                    table.ring.remove(line)
            elif job_id in table.called:
                table.called.remove(job_id)
            else:
                return False
            table.messages.discard(job_id)
            return True

    def waiting(self, priority: Priority) -> list[JobId]:
        """Return the jobs that no worker holds: first the urgent ones, then agent by agent."""
        table = self.tables.queues[priority]
        return [*table.called, *(job_id for line in table.lines.values() for job_id in line)]

    def holds(self, job_id: JobId, priority: Priority) -> bool:
        """Whether the job waits, or a live worker holds it."""
        return job_id in self.waiting(priority) or self._is_in_a_hand(job_id, priority)

    # -- the worker's side -----------------------------------------------------------------------

    def take(
        self, priority: Priority = Priority.INTERACTIVE, consumer: str = ENGINE
    ) -> JobId | None:
        """Hand the next job to a worker; a sign of its life, and an end to silent ones."""
        with self._lock:
            self.tables.heartbeats[consumer] = self._clock.seconds
            self._let_go_of_the_silent(priority)
            table = self.tables.queues[priority]
            while True:
                if not table.called and not self._call(table):
                    return None
                job_id = table.called.pop(0)
                table.in_hand.setdefault(consumer, set()).add(job_id)
                if job_id in table.messages:
                    return job_id

    def ack(self, job_id: JobId, consumer: str = ENGINE) -> None:
        """Acknowledge a job for a worker."""
        with self._lock:
            for table in self.tables.queues.values():
                if job_id in table.in_hand.get(consumer, set()):
                    table.in_hand[consumer].remove(job_id)
                    table.messages.discard(job_id)

    def beat(self, consumer: str) -> None:
        """Give a sign of life."""
        self.tables.heartbeats[consumer] = self._clock.seconds

    def let_go(self, priority: Priority, consumer: str, held: Collection[JobId]) -> None:
        """Requeue the jobs that are recorded for a worker but that it does not hold."""
        with self._lock:
            table = self.tables.queues[priority]
            hand = table.in_hand.setdefault(consumer, set())
            for job_id in sorted(hand - set(held), reverse=True):
                hand.remove(job_id)
                table.bring_back(job_id)

    def requeue_in_hand(self, consumer: str) -> None:
        """Put what the last run of a worker had in hand back to the front."""
        for priority in Priority:
            self.let_go(priority, consumer, ())

    # -- inside ----------------------------------------------------------------------------------

    def _is_somewhere(self, job_id: JobId, priority: Priority, line: str) -> bool:
        table = self.tables.queues[priority]
        waits = job_id in table.lines.get(line, []) or job_id in table.called
        return waits or self._is_in_a_hand(job_id, priority)

    def _is_in_a_hand(self, job_id: JobId, priority: Priority) -> bool:
        table = self.tables.queues[priority]
        return any(job_id in table.in_hand.get(name, set()) for name in self.tables.heartbeats)

    def _call(self, table: QueueTable) -> bool:
        if not table.ring:
            return False
        agent = table.ring.pop(0)
        job_id = table.lines[agent][0]
        table.leave(job_id, agent)
        table.called.append(job_id)
        if agent in table.lines:
            table.ring.append(agent)
        return True

    def _let_go_of_the_silent(self, priority: Priority) -> None:
        limit = self._clock.seconds - HEARTBEAT_TIMEOUT_MS / 1000
        beats = self.tables.heartbeats
        for consumer in [name for name, at in beats.items() if at <= limit]:
            table = self.tables.queues[priority]
            table.called += sorted(table.in_hand.pop(consumer, set()) & table.messages)
            if not any(other.in_hand.get(consumer) for other in self.tables.queues.values()):
                del beats[consumer]
