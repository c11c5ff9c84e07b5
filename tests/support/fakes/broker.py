"""The broker's ports in memory.

``FakeBroker()`` holds one of each; setting ``down`` makes every call fail as a dead broker would,
and ``refuses_writes`` those that write.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self

from domain.chat.items import StreamItem
from domain.chat.request import ChatRequest
from domain.errors import EngineFailure
from domain.job.ports import ControlTopic, PulseReply, WorkerPulse
from domain.kv.hashing import BlockHash
from domain.kv.places import FoundBlocks
from domain.values import JobId, WorkerId
from tests.support.fakes.job_queue import FakeJobQueue
from tests.support.fakes.outage import Outage


class FakeItems:
    """``ItemSink``, ``ItemBacklog`` and ``ItemSource``; any thread may ``publish``."""

    def __init__(self, outage: Outage | None = None) -> None:
        self._outage = outage or Outage()
        self._lock = threading.Lock()
        self._stored: dict[JobId, dict[tuple[int, int], StreamItem]] = {}
        self._followers: set[FakeFollower] = set()
        #: Attempts up to this one are refused.
        self.refused: dict[JobId, int] = {}

    def publish(self, items: Sequence[tuple[JobId, StreamItem]]) -> None:
        self._outage.check_write()
        with self._lock:
            for job_id, item in items:
                if item.n is not None:
                    stream = self._stored.setdefault(job_id, {})
                    shut_out = item.attempt <= self.refused.get(job_id, 0)
                    if shut_out or (stream and max(stream) >= (item.attempt, item.n)):
                        continue
                    stream[item.attempt, item.n] = item
                for follower in self._followers:
                    follower.receive(job_id, item)

    def read(self, job_id: JobId, *, after: int = -1) -> tuple[StreamItem, ...]:
        self._outage.check()
        with self._lock:
            found: list[StreamItem] = []
            stored = self._stored.get(job_id, {})
            newest = max((item.epoch for item in stored.values()), default=1)
            for _, item in sorted(stored.items()):
                if item.n == after + 1 + len(found) and item.epoch == newest:
                    found.append(item)
            return tuple(found)

    def require_writable(self) -> None:
        self._outage.check_write()

    def follow(self, job_id: JobId, *, after: int = -1, epoch: int = 1) -> FakeFollower:
        follower = FakeFollower(self, job_id, after=after, epoch=epoch)
        with self._lock:
            self._followers.add(follower)
        return follower

    def unfollow(self, follower: FakeFollower) -> None:
        with self._lock:
            self._followers.discard(follower)

    @property
    def followers(self) -> int:
        """The number of readers."""
        return len(self._followers)

    def is_read(self, job_id: JobId) -> bool:
        """Whether a reader has taken all items of a job."""
        with self._lock:
            stored = len(self._stored.get(job_id, {}))
            return any(follower.has_taken(job_id, stored) for follower in self._followers)

    def forget(self, job_id: JobId, *, through: int = 0) -> None:
        """Drop a stream, on request or as a broker that lost its data."""
        self._outage.check_write()
        with self._lock:
            self._stored.pop(job_id, None)
            self.refused[job_id] = through


class FakeFollower(AsyncIterator[StreamItem]):
    """Reads the store after each announcement."""

    def __init__(self, items: FakeItems, job_id: JobId, *, after: int, epoch: int) -> None:
        self._items = items
        self._job_id = job_id
        self._last = after
        self._epoch = epoch
        self._ready: deque[StreamItem] = deque()
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._wake.set()
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamItem:
        while not self._ended:
            stored = self._items.read(self._job_id)
            if stored and stored[0].epoch > self._epoch:
                self._epoch, self._last = stored[0].epoch, -1
            if stored and stored[0].epoch == self._epoch:
                self._ready += stored[self._last + 1 :]
                self._last = max(self._last, len(stored) - 1)
            if self._ready:
                item = self._ready.popleft()
                if item.is_terminal:
                    await self.aclose()
                return item
            await self._wake.wait()
            self._wake.clear()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self._ended = True
        self._items.unfollow(self)
        self._wake.set()

    def has_taken(self, job_id: JobId, count: int) -> bool:
        return job_id == self._job_id and self._last + 1 >= count and not self._ready

    def receive(self, job_id: JobId, item: StreamItem) -> None:
        if job_id != self._job_id:
            return
        if item.n is None:
            self._ready.append(item)
        self._loop.call_soon_threadsafe(self._wake.set)


class FakeControlSignals:
    """``ControlSignals`` that records what it sent."""

    def __init__(self, outage: Outage | None = None) -> None:
        self._outage = outage or Outage()
        self.cancelled: list[JobId] = []
        self.topics: list[ControlTopic] = []

    def nudge_cancel(self, job_id: JobId) -> None:
        self._outage.check()
        self.cancelled.append(job_id)

    def nudge(self, topic: ControlTopic) -> None:
        self._outage.check()
        self.topics.append(topic)


class FakeWorkerPulses:
    """``WorkerPulses`` whose heartbeats expire on ``fade``."""

    def __init__(self, outage: Outage | None = None) -> None:
        self._outage = outage or Outage()
        self._pulses: dict[WorkerId, WorkerPulse] = {}
        self._is_watched = False

    def beat(self, pulse: WorkerPulse) -> PulseReply:
        self._outage.check_write()
        known = pulse.worker in self._pulses
        self._pulses[pulse.worker] = pulse
        return PulseReply(was_known=known, is_watched=self._is_watched)

    def watch(self) -> None:
        self._outage.check_write()
        self._is_watched = True

    def alive(self) -> tuple[WorkerPulse, ...]:
        self._outage.check()
        return tuple(self._pulses[name] for name in sorted(self._pulses))

    def fade(self) -> None:
        """Expire every heartbeat, and the request for rows."""
        self._pulses.clear()
        self._is_watched = False


class FakeTokenCounter:
    """``TokenCounter`` that counts at once."""

    def __init__(
        self,
        count: Callable[[ChatRequest], int] = lambda request: len(request.messages[-1].content),
        outage: Outage | None = None,
    ) -> None:
        self._outage = outage or Outage()
        self.count_of = count

    def count(self, request: ChatRequest) -> int:
        self._outage.check()
        try:
            return self.count_of(request)
        except RuntimeError:
            msg = "the prompt could not be counted"
            raise EngineFailure(msg) from None


class FakeBlockPlaces:
    """``BlockPlaces`` of workers that the test describes."""

    def __init__(self, outage: Outage | None = None) -> None:
        self._outage = outage or Outage()
        self.memory: dict[WorkerId, set[BlockHash]] = {}
        self.disk: dict[WorkerId, set[BlockHash]] = {}

    def find(self, names: Sequence[BlockHash]) -> tuple[FoundBlocks, ...]:
        self._outage.check()
        return tuple(
            FoundBlocks(
                worker=worker,
                in_memory=tuple(name in self.memory[worker] for name in names),
                on_disk=tuple(name in self.disk[worker] for name in names),
            )
            for worker in self.memory
            if names
        )

    def forget(self, names: Sequence[BlockHash]) -> int:
        self._outage.check()
        for blocks in (*self.memory.values(), *self.disk.values()):
            blocks.difference_update(names)
        return len(self.memory) if names else 0


class FakeBroker:
    """All ports of a broker, behind one switch."""

    def __init__(self) -> None:
        self._outage = Outage()
        self.queue = FakeJobQueue(self._outage)
        self.items = FakeItems(self._outage)
        self.signals = FakeControlSignals(self._outage)
        self.pulses = FakeWorkerPulses(self._outage)
        self.counter = FakeTokenCounter(outage=self._outage)
        self.places = FakeBlockPlaces(self._outage)

    @property
    def down(self) -> bool:
        return self._outage.down

    @down.setter
    def down(self, value: bool) -> None:
        self._outage.down = value

    @property
    def refuses_writes(self) -> bool:
        return self._outage.refuses_writes

    @refuses_writes.setter
    def refuses_writes(self, value: bool) -> None:
        self._outage.refuses_writes = value
