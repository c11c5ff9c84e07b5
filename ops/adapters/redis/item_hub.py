"""Stream items from Redis for all readers of one event loop, announced and stored ones merged."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from typing import Any, Self

import redis
import redis.asyncio

from domain.chat.items import StreamItem
from domain.errors import QueueUnavailable
from domain.values import JobId
from ops.adapters.redis.client import Keys
from ops.adapters.redis.items import PAGE_ITEMS, decode_announcement, decode_entries, entry_id

#: Most items in the buffer of one reader.
BUFFER_ITEMS_MAX = 1024
#: Most bytes of JSON in the buffer; a single larger item is taken.
BUFFER_BYTES_MAX = 256 * 1024


class ItemMerge:
    """The buffer of one reader.

    Args:
        after: Last number that the reader has.
        epoch: Epoch of that number.
        items_max: Most items in the buffer.
        bytes_max: Most bytes in the buffer.
    """

    def __init__(
        self,
        *,
        after: int = -1,
        epoch: int = 1,
        items_max: int = BUFFER_ITEMS_MAX,
        bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        self._next = after + 1
        self._epoch = epoch
        self._items: deque[tuple[int, StreamItem]] = deque()
        self._bytes = 0
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._lagging = True
        self._announced_meanwhile = False
        # Ids sort by attempt first, and an epoch has the number of its first attempt.
        self._cursor: tuple[int, int] | None = None if after < 0 else (epoch, after)
        #: Epoch and number of a terminal item that cannot be taken.
        self._end_beyond_gap = (0, -1)
        self._broken = False

    def __len__(self) -> int:
        return len(self._items)

    @property
    def cursor(self) -> tuple[int, int] | None:
        """Attempt and number to read the store after; ``None`` to read from the beginning."""
        return self._cursor

    @property
    def needs_page(self) -> bool:
        """Whether the next item must come from the store."""
        return self._lagging and not self._items

    @property
    def is_broken(self) -> bool:
        """Whether the job has ended and the store lacks items before its end."""
        return self._broken and not self._items

    def take(self) -> StreamItem | None:
        """Return the next buffered item; ``None`` if there is none."""
        if not self._items:
            return None
        size, item = self._items.popleft()
        self._bytes -= size
        return item

    def lag(self) -> None:
        """Record that announcements may have been missed."""
        self._lagging = True
        self._announced_meanwhile = True

    def announced(self, item: StreamItem, size: int) -> bool:
        """Buffer an announced item, or record that it must be read from the store.

        Returns:
            Whether the reader can make progress.
        """
        if item.n is None:
            is_present = item.epoch == self._epoch and not self._lagging
            return is_present and self._put(item, size)
        if (item.epoch, item.n) < (self._epoch, self._next):
            return False
        if self._take(item, size):
            # All items before it are known, and all items after it will be announced.
            self._lagging = False
            return True
        self.lag()
        return True

    def begin_page(self) -> None:
        """Record that a read of the store from ``cursor`` begins."""
        self._announced_meanwhile = False

    def page(self, items: Sequence[tuple[int, StreamItem]], *, is_last: bool) -> None:
        """Buffer a page of the store.

        Args:
            items: Sizes and items after ``cursor``, in the order of the store.
            is_last: Whether the store had no more when it was read.
        """
        for size, item in items:
            assert item.n is not None, "never stored"  # noqa: S101 - a contract of the caller
            if self._is_next(item):
                if not self._take(item, size):
                    return
            elif item.is_terminal:
                self._end_beyond_gap = (item.epoch, item.n)
            self._move_cursor(item)
        if not is_last:
            return
        self._broken = (self._epoch, self._next) <= self._end_beyond_gap
        # The page may lack items that were announced while it was read.
        self._lagging = self._announced_meanwhile

    def _put(self, item: StreamItem, size: int) -> bool:
        full = len(self._items) >= self._items_max or self._bytes + size > self._bytes_max
        if full and self._items:
            return False
        self._items.append((size, item))
        self._bytes += size
        return True

    def _is_next(self, item: StreamItem) -> bool:
        if item.epoch == self._epoch:
            return item.n == self._next
        return item.epoch > self._epoch and item.n == 0

    def _take(self, item: StreamItem, size: int) -> bool:
        """Buffer a numbered item if it is the next one and there is room."""
        if not self._is_next(item):
            return False
        if item.epoch > self._epoch:
            self._epoch, self._next, self._bytes = item.epoch, 0, 0
            self._broken = False
            self._items.clear()
        if not self._put(item, size):
            return False
        self._next += 1
        self._move_cursor(item)
        return True

    def _move_cursor(self, item: StreamItem) -> None:
        assert item.n is not None, "never stored"  # noqa: S101 - a contract of the caller
        here = (item.attempt, item.n)
        if self._cursor is None or here > self._cursor:
            self._cursor = here


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
