"""A Redis that can be unreachable, refuse writes, lose its data, or return with older data."""

from __future__ import annotations

from copy import deepcopy

from domain.chat.items import StreamItem
from domain.engine.workers import ControlTopic
from domain.values import JobId
from tests.support.fakes.broker import FakeItems
from tests.support.fakes.job_queue import FakeJobQueue, QueueTables
from tests.support.fakes.outage import Outage
from tests.support.fakes.time import FakeClock

#: Items by job and place, and the attempts that are shut out.
_Stored = tuple[dict[JobId, dict[tuple[int, int], StreamItem]], dict[JobId, int]]


class Signals:
    """``ControlSignals`` with a mailbox per listener; a signal without a listener is lost."""

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self.mailboxes: dict[str, list[JobId]] = {}

    def nudge_cancel(self, job_id: JobId) -> None:
        self._outage.check()
        for mailbox in self.mailboxes.values():
            mailbox.append(job_id)

    def nudge(self, topic: ControlTopic) -> None:
        del topic
        self._outage.check()


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
    """

    def __init__(self, clock: FakeClock) -> None:
        self.outage = Outage()
        self.queue = FakeJobQueue(self.outage, clock)
        self.items = StoredItems(self.outage)
        self.signals = Signals(self.outage)
        self.losses = 0
        self._saved = (deepcopy(self.queue.tables), self.items.copy())

    @property
    def is_empty(self) -> bool:
        """Whether no job waits, and no worker holds one.

        A job that has ended may wait for its end to be published, in the line of a model that no
        worker has yet.
        """
        return not any(table.messages for table in self.queue.tables.queues.values())

    def go_down(self) -> None:
        """Be away; every listener loses its subscription."""
        self.outage.down = True
        self.signals.mailboxes.clear()

    def refuse_writes(self) -> None:
        """Answer reads only, as with a full disk or after a failover."""
        self.outage.refuses_writes = True

    def come_back(self) -> None:
        """Be there again, for reads and writes; listeners must ask anew."""
        self.outage.down = self.outage.refuses_writes = False

    def save(self) -> None:
        """Write a snapshot, as Redis does now and then."""
        self._saved = (deepcopy(self.queue.tables), self.items.copy())

    def flush(self) -> None:
        """Lose everything."""
        self.losses += 1
        self.queue.tables = QueueTables()
        self.items.put_back(({}, {}))

    def roll_back(self) -> None:
        """Lose everything since the last snapshot."""
        self.losses += 1
        tables, items = self._saved
        self.queue.tables = deepcopy(tables)
        self.items.put_back(items)
