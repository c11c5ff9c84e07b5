"""A Redis that can be away, lose everything, or come back with what it had a while ago."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

from domain.stream import StreamItem
from domain.values import JobId, Priority
from ops.adapters.dramatiq_queue import HEARTBEAT_TIMEOUT_MS
from tests.support.fake_broker import FakeItems, Outage
from tests.support.fake_time import FakeClock

#: Items by job and place, and the attempts that are shut out.
_Stored = tuple[dict[JobId, dict[tuple[int, int], StreamItem]], dict[JobId, int]]


@dataclass
class _Tables:
    """What ``ops.adapters.dramatiq_queue`` keeps in Redis, for each queue."""

    waiting: dict[Priority, list[JobId]] = field(
        default_factory=lambda: {priority: [] for priority in Priority}
    )
    messages: dict[Priority, set[JobId]] = field(
        default_factory=lambda: {priority: set() for priority in Priority}
    )
    in_hand: dict[tuple[str, Priority], set[JobId]] = field(default_factory=dict)
    heartbeats: dict[str, float] = field(default_factory=dict)


class HandedQueue:
    """``JobQueue`` with Dramatiq's hands and heartbeats; all agents share one line.

    The worker's side is ``take``, ``ack`` and ``requeue_in_hand``, each for a consumer of a name.
    """

    def __init__(self, outage: Outage | None = None, clock: FakeClock | None = None) -> None:
        self.outage = outage or Outage()
        self._clock = clock or FakeClock()
        self.tables = _Tables()

    def enqueue(self, job_id: JobId, priority: Priority, *, agent: str | None = None) -> bool:
        del agent
        self.outage.check()
        tables = self.tables
        if job_id in tables.messages[priority]:
            if job_id in tables.waiting[priority]:
                return False
            hands = [tables.in_hand.get((name, priority), set()) for name in tables.heartbeats]
            if any(job_id in hand for hand in hands):
                return False
        tables.messages[priority].add(job_id)
        tables.waiting[priority].append(job_id)
        return True

    def remove(self, job_id: JobId, priority: Priority, *, agent: str | None = None) -> bool:
        del agent
        self.outage.check()
        if job_id not in self.tables.waiting[priority]:
            return False
        self.tables.waiting[priority].remove(job_id)
        self.tables.messages[priority].discard(job_id)
        return True

    def take(
        self, priority: Priority = Priority.INTERACTIVE, consumer: str = "engine-0"
    ) -> JobId | None:
        """Hand the oldest job to a consumer; a sign of its life, and an end to silent ones."""
        self.outage.check()
        self.beat(consumer)
        self._let_go_of_the_silent(priority)
        line = self.tables.waiting[priority]
        while line:
            job_id = line.pop(0)
            self._hand(consumer, priority).add(job_id)
            if job_id in self.tables.messages[priority]:
                return job_id
        return None

    def ack(
        self,
        job_id: JobId,
        priority: Priority = Priority.INTERACTIVE,
        consumer: str = "engine-0",
    ) -> None:
        """Say that a consumer is done with a job."""
        self.outage.check()
        hand = self._hand(consumer, priority)
        if job_id in hand:
            hand.remove(job_id)
            self.tables.messages[priority].discard(job_id)

    def beat(self, consumer: str) -> None:
        """Give a sign of life."""
        self.tables.heartbeats[consumer] = self._clock.seconds

    def requeue_in_hand(self, consumer: str) -> None:
        """Put what the last run of a consumer had in hand back to the front."""
        self.outage.check()
        for priority in Priority:
            for job_id in sorted(self._hand(consumer, priority), reverse=True):
                if job_id in self.tables.messages[priority]:
                    line = self.tables.waiting[priority]
                    line[:] = [job_id, *(one for one in line if one != job_id)]
            self._hand(consumer, priority).clear()

    def holds(self, job_id: JobId, priority: Priority) -> bool:
        """Whether the job waits, or is in the hand of somebody who was heard of."""
        hands = [
            self.tables.in_hand.get((name, priority), set()) for name in self.tables.heartbeats
        ]
        return job_id in self.tables.waiting[priority] or any(job_id in hand for hand in hands)

    def _hand(self, consumer: str, priority: Priority) -> set[JobId]:
        return self.tables.in_hand.setdefault((consumer, priority), set())

    def _let_go_of_the_silent(self, priority: Priority) -> None:
        limit = self._clock.seconds - HEARTBEAT_TIMEOUT_MS / 1000
        for consumer in [name for name, at in self.tables.heartbeats.items() if at <= limit]:
            for job_id in sorted(self._hand(consumer, priority)):
                if job_id in self.tables.messages[priority]:
                    self.tables.waiting[priority].append(job_id)
            self._hand(consumer, priority).clear()
            if not any(self._hand(consumer, queue) for queue in Priority):
                del self.tables.heartbeats[consumer]


class Signals:
    """``ControlSignals`` with a mailbox for each listener; what nobody listens for is lost."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self.mailboxes: dict[str, list[JobId]] = {}

    def nudge_cancel(self, job_id: JobId) -> None:
        self._outage.check()
        for mailbox in self.mailboxes.values():
            mailbox.append(job_id)


class StoredItems(FakeItems):
    """The items, with a look into the store as it is."""

    def raw(self, job_id: JobId) -> list[StreamItem]:
        """Return everything that is stored of a job in the order of the store."""
        return [item for _, item in sorted(self._stored.get(job_id, {}).items())]

    def copy(self) -> _Stored:
        """Return all of it."""
        stored = {job_id: dict(items) for job_id, items in self._stored.items()}
        return stored, dict(self.refused)

    def put_back(self, saved: _Stored) -> None:
        """Have what ``copy`` returned, and nothing else."""
        stored, refused = saved
        self._stored = {job_id: dict(items) for job_id, items in stored.items()}
        self.refused = dict(refused)


class Broker:
    """One of each, and the faults of the whole.

    Attributes:
        losses: How often data was lost.
        was_rolled_back: Whether it ever came back with what it had before.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.outage = Outage()
        self.queue = HandedQueue(self.outage, clock)
        self.items = StoredItems(self.outage)
        self.signals = Signals(self.outage)
        self.losses = 0
        self.was_rolled_back = False
        self._saved = (deepcopy(self.queue.tables), self.items.copy())

    def go_down(self) -> None:
        """Be away; every listener loses its subscription."""
        self.outage.down = True
        self.signals.mailboxes.clear()

    def come_back(self) -> None:
        """Be there again; listeners must ask anew."""
        self.outage.down = False

    def save(self) -> None:
        """Write a snapshot, as Redis does now and then."""
        self._saved = (deepcopy(self.queue.tables), self.items.copy())

    def flush(self) -> None:
        """Lose everything."""
        self.losses += 1
        self.queue.tables = _Tables()
        self.items.put_back(({}, {}))

    def roll_back(self) -> None:
        """Lose everything since the last snapshot."""
        self.losses += 1
        self.was_rolled_back = True
        tables, items = self._saved
        self.queue.tables = deepcopy(tables)
        self.items.put_back(items)
