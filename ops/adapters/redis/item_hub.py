"""Stream items from Redis for all readers of one event loop.

One subscription serves all readers: an announcement is decoded once, and only for jobs that have a
reader. Each reader has its own position (``ItemMerge``). After an error on the bus each reader
reads the missing items from the store at its own pace, so no reader waits for another.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, Self

import redis
import redis.asyncio

from domain.chat.items import StreamItem
from domain.errors import QueueUnavailable
from domain.values import JobId
from ops.adapters.redis.client import Keys
from ops.adapters.redis.item_merge import ItemMerge
from ops.adapters.redis.items import PAGE_ITEMS, decode_announcement, decode_entries, entry_id

#: Readers that read from the store at once; the others wait.
PAGES_AT_ONCE = 16
#: A reader gives up after the store is unreachable for this long.
UNREACHABLE_MAX_S = 10.0
#: Pause between two attempts to reach the broker: the first, and the limit of doubling it.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
#: How long ``start`` waits for the subscription before it returns without one.
START_WAIT_S = 5.0
#: A reader without announcements reads the store this often: a subscription can die without an
#: error.
RECHECK_S = 10.0


class RedisItemHub:
    """``domain.job.ports.ItemSource`` for the event loop that awaits ``start``.

    Args:
        client: Made by ``connect_async``; the hub closes it.
        keys: Key names.

    Attributes:
        on_announced: Called for each announcement, of any job; must return at once.
    """

    def __init__(self, client: redis.asyncio.Redis, keys: Keys) -> None:
        self.on_announced: Callable[[], None] = lambda: None
        self._client = client
        self._keys = keys
        self._readers: dict[JobId, set[ItemFollower]] = {}
        self._pages = asyncio.Semaphore(PAGES_AT_ONCE)
        self._subscribed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._log = logging.getLogger(__name__)

    async def start(self) -> None:
        """Start listening; retry in the background while the broker is unavailable."""
        assert not self._tasks, "started twice"  # noqa: S101 - states what callers must not do
        self._tasks = [
            asyncio.create_task(self._listen_always(), name="item-hub"),
            asyncio.create_task(self._recheck_always(), name="item-hub-recheck"),
        ]
        with suppress(TimeoutError):
            await asyncio.wait_for(self._subscribed.wait(), START_WAIT_S)

    async def close(self) -> None:
        """Stop listening and end every reader's iteration."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for reader in [each for readers in self._readers.values() for each in readers]:
            await reader.aclose()
        await self._client.aclose()

    def follow(self, job_id: JobId, *, after: int = -1, epoch: int = 1) -> ItemFollower:
        """Return the items of a job above ``after``, announced ones from now on."""
        return ItemFollower(self, job_id, after=after, epoch=epoch)

    def register(self, reader: ItemFollower) -> None:
        """Deliver announcements for its job to ``reader``."""
        self._readers.setdefault(reader.job_id, set()).add(reader)

    def unregister(self, reader: ItemFollower) -> None:
        """Stop deliveries to ``reader``; a second call does nothing."""
        readers = self._readers.get(reader.job_id, set())
        readers.discard(reader)
        if not readers:
            self._readers.pop(reader.job_id, None)

    async def read_page(self, job_id: JobId, cursor: tuple[int, int] | None) -> list[Any]:
        """Return the stored entries after ``cursor``, at most ``PAGE_ITEMS``.

        Raises:
            QueueUnavailable: The broker was unavailable for ``UNREACHABLE_MAX_S``.
        """
        start = "-" if cursor is None else "(" + entry_id(*cursor)
        loop = asyncio.get_running_loop()
        give_up_at, pause_s = loop.time() + UNREACHABLE_MAX_S, RETRY_FIRST_S
        while True:
            try:
                async with self._pages:
                    entries: Any = await self._client.xrange(
                        self._keys.items(job_id), min=start, count=PAGE_ITEMS
                    )
                    return list(entries)
            except (redis.RedisError, OSError) as error:
                if loop.time() >= give_up_at:
                    message = f"the broker did not answer for {UNREACHABLE_MAX_S:.0f} s: {error}"
                    raise QueueUnavailable(message) from error
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _listen_always(self) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            try:
                await self._listen()
            except (redis.RedisError, OSError) as error:
                if self._subscribed.is_set():
                    self._log.warning("lost the bus, trying again: %s", error)
                    pause_s = RETRY_FIRST_S
                self._subscribed.clear()
                # The readers read the store now, and raise if the broker is unavailable.
                self._lag_all()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _listen(self) -> None:
        async with self._client.pubsub() as subscription:
            await subscription.subscribe(self._keys.bus)
            while True:
                message: Any = await subscription.get_message(timeout=RECHECK_S)
                if message is None:
                    continue
                if message["type"] == "message":
                    self._deliver(message["data"])
                elif message["type"] == "subscribe":
                    # The library subscribes again after it has reconnected; this message is the
                    # only sign of it.
                    self._subscribed.set()
                    self._lag_all()

    async def _recheck_always(self) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            for readers in self._readers.values():
                for reader in readers:
                    reader.recheck()

    def _deliver(self, packed: bytes) -> None:
        self.on_announced()
        try:
            for job_id, size, item in decode_announcement(packed, self._readers.__contains__):
                for reader in self._readers[job_id]:
                    reader.announced(item, size)
        except (ValueError, KeyError, UnicodeDecodeError):
            self._log.exception("an announcement cannot be decoded")
            self._lag_all()

    def _lag_all(self) -> None:
        for readers in self._readers.values():
            for reader in readers:
                reader.lag()


class ItemFollower(AsyncIterator[StreamItem]):
    """The items of one job for one reader; made by ``RedisItemHub.follow``.

    One task at a time may await it. Cancelling that task loses no item.
    """

    def __init__(self, hub: RedisItemHub, job_id: JobId, *, after: int, epoch: int) -> None:
        self.job_id = job_id
        self._hub = hub
        self._merge = ItemMerge(after=after, epoch=epoch)
        self._wake = asyncio.Event()
        self._ended = False
        self._quiet = False
        hub.register(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamItem:
        while not self._ended:
            item = self._merge.take()
            if item is not None:
                if item.is_terminal:
                    await self.aclose()
                return item
            if self._merge.is_broken:
                await self.aclose()
                message = f"the broker lost items of {self.job_id}; its result is in the log"
                raise QueueUnavailable(message)
            if self._merge.needs_page:
                await self._read_page()
            else:
                self._wake.clear()
                await self._wake.wait()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the subscription; a second call does nothing."""
        self._ended = True
        self._hub.unregister(self)
        self._wake.set()

    @property
    def buffered_items(self) -> int:
        """How many items wait in memory."""
        return len(self._merge)

    def announced(self, item: StreamItem, size: int) -> None:
        """Receive an announcement; called by the hub."""
        self._quiet = False
        if self._merge.announced(item, size):
            self._wake.set()

    def lag(self) -> None:
        """Record that announcements may have been missed; called by the hub."""
        self._merge.lag()
        self._wake.set()

    def recheck(self) -> None:
        """Read the store if no announcement arrived since the last call; called by the hub."""
        if self._quiet:
            self.lag()
        self._quiet = True

    async def _read_page(self) -> None:
        self._merge.begin_page()
        entries = await self._hub.read_page(self.job_id, self._merge.cursor)
        self._merge.page(decode_entries(entries), is_last=len(entries) < PAGE_ITEMS)
