"""The job queue in memory: a queue per agent, unacknowledged jobs, heartbeats."""

from __future__ import annotations

import threading
from bisect import insort
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from domain.values import JobId, Priority
from ops.broker.client import queue_name
from ops.broker.dramatiq_queue import HEARTBEAT_TIMEOUT_MS
from tests.support.fakes.outage import Outage
from tests.support.fakes.time import FakeClock

#: The worker in tests with a single worker.
ENGINE = "engine-0"


@dataclass
class QueueTable:
    """The Redis state of one queue, by the names of ``ops.broker.dramatiq_queue``."""

    agent_queues: dict[str, list[JobId]] = field(default_factory=dict)
    ring: list[str] = field(default_factory=list)
    ready: list[JobId] = field(default_factory=list)
    urgencies: dict[JobId, int] = field(default_factory=dict)
    messages: set[JobId] = field(default_factory=set)
    unacked: dict[str, set[JobId]] = field(default_factory=dict)

    def leave(self, job_id: JobId, agent: str) -> None:
        """Remove a job from its agent's queue; the last one removes the agent."""
        self.agent_queues[agent].remove(job_id)
        if not self.agent_queues[agent]:
            del self.agent_queues[agent]

    def requeue_unacked(self, consumer: str, holds: Collection[JobId]) -> None:
        """Requeue the unacknowledged jobs of a worker that it does not hold."""
        unacked = self.unacked.setdefault(consumer, set())
        for job_id in sorted(unacked - set(holds), reverse=True):
            unacked.remove(job_id)
            self.requeue_first(job_id)

    def requeue_first(self, job_id: JobId) -> None:
        """Make a job with a message the first ready one."""
        if job_id in self.messages:
            self.ready[:] = [job_id, *(one for one in self.ready if one != job_id)]


@dataclass
class QueueTables:
    """The whole state; ``copy.deepcopy`` makes a snapshot."""

    queues: defaultdict[str, QueueTable] = field(default_factory=lambda: defaultdict(QueueTable))
    heartbeats: dict[str, float] = field(default_factory=dict)


class FakeJobQueue:
    """``JobQueue``; calls of the worker's side name a consumer.

    Args:
        outage: Whether the broker can be reached; checked only on the API side.
        clock: Clock of the heartbeats; without one no heartbeat expires.

    Attributes:
        tables: The state, which a broker that restarts may lose.
    """

    def __init__(self, outage: Outage | None = None, clock: FakeClock | None = None) -> None:
        self._outage = outage or Outage()
        self._clock = clock or FakeClock()
        self._lock = threading.Lock()
        self.tables = QueueTables()

    def enqueue(
        self,
        job_id: JobId,
        priority: Priority,
        *,
        line: str | None = None,
        model: str | None = None,
        urgency: int = 0,
    ) -> bool:
        self._outage.check_write()
        with self._lock:
            table, name = self._table(priority, model), line or ""
            if job_id in table.messages and self._is_somewhere(job_id, table, name):
                return False
            table.messages.add(job_id)
            table.urgencies[job_id] = urgency
            waiting = table.agent_queues.setdefault(name, [])
            insort(waiting, job_id, key=lambda one: (-table.urgencies[one], one))
            if name not in table.ring:
                table.ring.append(name)
            return True

    def remove(
        self,
        job_id: JobId,
        priority: Priority,
        *,
        line: str | None = None,
        model: str | None = None,
    ) -> bool:
        self._outage.check_write()
        with self._lock:
            table, name = self._table(priority, model), line or ""
            if job_id in table.agent_queues.get(name, []):
                table.leave(job_id, name)
                if name not in table.agent_queues:
                    table.ring.remove(name)
            elif job_id in table.ready:
                table.ready.remove(job_id)
            elif not self._left_by_dead(job_id, table):
                return False
            table.messages.discard(job_id)
            return True

    def waiting(self, priority: Priority, model: str | None = None) -> list[JobId]:
        """Return the jobs that no worker holds: first the ready ones, then agent by agent."""
        table = self._table(priority, model)
        return [*table.ready, *(job_id for jobs in table.agent_queues.values() for job_id in jobs)]

    def holds(self, job_id: JobId, priority: Priority, model: str | None = None) -> bool:
        """Whether the job waits, or a live worker holds it."""
        is_unacked = self._is_unacked(job_id, self._table(priority, model))
        return job_id in self.waiting(priority, model) or is_unacked

    def has_message(self, job_id: JobId) -> bool:
        """Whether the job is in a line or in the hands of a worker."""
        with self._lock:
            return any(job_id in table.messages for table in self.tables.queues.values())

    def is_unacked_by(self, job_id: JobId, consumers: Collection[str]) -> bool:
        """Whether one of these workers has not acknowledged the job."""
        return any(
            job_id in table.unacked.get(one, set())
            for table in self.tables.queues.values()
            for one in consumers
        )

    # -- the worker's side -----------------------------------------------------------------------

    def take(
        self,
        priority: Priority = Priority.INTERACTIVE,
        consumer: str = ENGINE,
        model: str | None = None,
    ) -> JobId | None:
        """Return the next job of a worker; requeue the jobs of workers without a heartbeat."""
        with self._lock:
            self.tables.heartbeats[consumer] = self._clock.seconds
            table = self._table(priority, model)
            self._requeue_of_dead(table)
            while True:
                if not table.ready and not self._make_ready(table):
                    return None
                job_id = table.ready.pop(0)
                table.unacked.setdefault(consumer, set()).add(job_id)
                if job_id in table.messages:
                    return job_id

    def ack(self, job_id: JobId, consumer: str = ENGINE) -> None:
        """Acknowledge a job for a worker."""
        with self._lock:
            for table in self.tables.queues.values():
                if job_id in table.unacked.get(consumer, set()):
                    table.unacked[consumer].remove(job_id)
                    table.messages.discard(job_id)

    def beat(self, consumer: str) -> None:
        """Record a heartbeat."""
        self.tables.heartbeats[consumer] = self._clock.seconds

    def requeue_lost(
        self,
        priority: Priority,
        consumer: str,
        holds: Collection[JobId],
        model: str | None = None,
    ) -> None:
        """Requeue the jobs that are recorded for a worker but that it does not hold."""
        with self._lock:
            self._table(priority, model).requeue_unacked(consumer, holds)

    def requeue_unacked(self, consumer: str) -> None:
        """Requeue the jobs that the last run of a worker left unacknowledged, at the front."""
        with self._lock:
            for table in self.tables.queues.values():
                table.requeue_unacked(consumer, ())

    # -- inside ----------------------------------------------------------------------------------

    def _table(self, priority: Priority, model: str | None) -> QueueTable:
        return self.tables.queues[queue_name(priority, model)]

    def _is_somewhere(self, job_id: JobId, table: QueueTable, name: str) -> bool:
        waits = job_id in table.agent_queues.get(name, []) or job_id in table.ready
        return waits or self._is_unacked(job_id, table)

    def _is_unacked(self, job_id: JobId, table: QueueTable) -> bool:
        return any(
            job_id in table.unacked.get(consumer, set()) for consumer in self.tables.heartbeats
        )

    def _left_by_dead(self, job_id: JobId, table: QueueTable) -> bool:
        """Take a job out of the hands of workers without a heartbeat; whether one had it."""
        holders = [name for name in self._dead() if job_id in table.unacked.get(name, set())]
        for name in holders:
            table.unacked[name].remove(job_id)
        return bool(holders)

    def _dead(self) -> list[str]:
        limit = self._clock.seconds - HEARTBEAT_TIMEOUT_MS / 1000
        return [name for name, at in self.tables.heartbeats.items() if at <= limit]

    def _make_ready(self, table: QueueTable) -> bool:
        if not table.ring:
            return False
        agent = table.ring.pop(0)
        job_id = table.agent_queues[agent][0]
        table.leave(job_id, agent)
        table.ready.append(job_id)
        if agent in table.agent_queues:
            table.ring.append(agent)
        return True

    def _requeue_of_dead(self, table: QueueTable) -> None:
        beats = self.tables.heartbeats
        for consumer in self._dead():
            table.ready += sorted(table.unacked.pop(consumer, set()) & table.messages)
            if not any(other.unacked.get(consumer) for other in self.tables.queues.values()):
                del beats[consumer]
