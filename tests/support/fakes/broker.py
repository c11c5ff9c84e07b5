"""The broker's ports in memory.

``FakeBroker()`` holds one of each; setting ``down`` makes every call fail as a dead broker would,
and ``refuses_writes`` those that write.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Final

from domain.chat.items import StreamItem
from domain.chat.request import ChatRequest
from domain.engine.workers import ControlTopic, PulseReply, WorkerPulse
from domain.errors import EngineFailure
from domain.job.ports import ItemPage, ItemReader
from domain.job.prepare_prompt import PromptTokens
from domain.kv.hashing import BlockHash
from domain.kv.places import FoundBlocks
from domain.values import JobId, WorkerId
from tests.support.fakes.job_queue import FakeJobQueue
from tests.support.fakes.outage import Outage

#: Items of a page.
PAGE_ITEMS: Final = 100


class FakeItems:
    """``ItemSink``, ``ItemBacklog`` and ``ItemSource``; any thread may ``publish``."""

    def __init__(self, outage: Outage | None = None) -> None:
        self._outage = outage or Outage()
        self._lock = threading.Lock()
        self._stored: dict[JobId, dict[tuple[int, int], StreamItem]] = {}
        self._readers: list[tuple[JobId, ItemReader, asyncio.AbstractEventLoop]] = []
        #: Whether items are stored without being announced.
        self.is_mute = False
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
                for wanted, reader, loop in self._readers:
                    if wanted == job_id and not self.is_mute:
                        loop.call_soon_threadsafe(reader.announced, item, 1)

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

    def register(self, job_id: JobId, reader: ItemReader) -> None:
        with self._lock:
            self._readers.append((job_id, reader, asyncio.get_running_loop()))

    def unregister(self, job_id: JobId, reader: ItemReader) -> None:
        with self._lock:
            kept = [one for one in self._readers if one[:2] != (job_id, reader)]
            self._readers = kept

    async def read_page(self, job_id: JobId, cursor: tuple[int, int] | None) -> ItemPage:
        self._outage.check()
        with self._lock:
            stored = sorted(self._stored.get(job_id, {}).items())
        later = [(1, item) for place, item in stored if cursor is None or place > cursor]
        return ItemPage(later[:PAGE_ITEMS], is_last=len(later) <= PAGE_ITEMS)

    @property
    def followers(self) -> int:
        """The number of readers."""
        return len(self._readers)

    def forget(self, job_id: JobId, *, through: int = 0) -> None:
        """Drop a stream, on request or as a broker that lost its data."""
        self._outage.check_write()
        with self._lock:
            self._stored.pop(job_id, None)
            self.refused[job_id] = through


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
        self.requests: list[ChatRequest] = []
        self.count_of = count
        self.tokens = PromptTokens((72, 105), "Hi")

    def read(self, request: ChatRequest) -> PromptTokens:
        self._outage.check()
        self.requests.append(request)
        return self.tokens

    def count(self, request: ChatRequest) -> int:
        self._outage.check()
        try:
            return self.count_of(request)
        except RuntimeError:
            raise EngineFailure("the prompt could not be counted") from None


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
