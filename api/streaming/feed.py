"""The items of a job for one connection: live and stored ones, in order, each once.

The broker stores each numbered item and announces it. ``ItemMerge`` merges both by number into the
one buffer of a connection. What the broker has lost comes from the log, once the job has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from api.calls import BlockingCalls
from api.http.messages import Request
from api.streaming.readers import CLIENT_GONE, JobReading
from domain.audit.recorded_answers import JobRecords
from domain.chat.items import StreamItem, is_output
from domain.chat.stored_answer import ReaderPosition
from domain.errors import (
    Draining,
    EngineFailure,
    ModelChanged,
    QueueUnavailable,
    SemanticError,
)
from domain.job.ports import ItemBacklog, ItemSource
from domain.values import JobId

#: Most items in the buffer of one connection.
BUFFER_ITEMS_MAX: Final = 1024
#: Most bytes of JSON in the buffer; a single larger item is taken.
BUFFER_BYTES_MAX: Final = 256 * 1024
#: The longest time between two reads of the log by a silent stream, in seconds.
LOOK_MAX_S: Final = 10.0
#: A stream fails after the store is unreachable for this long, in seconds.
UNREACHABLE_MAX_S = 10.0
#: Pause between two attempts to read the store, in seconds.
RETRY_S: Final = 0.5


class ItemMerge:
    """The buffer of one connection, which holds items of one epoch at a time.

    Args:
        after: Last number that the reader has.

    Attributes:
        items: What the reader has not taken yet.
        cursor: Attempt and number to read the store after; ``None`` to read from the beginning.
        is_complete: Whether the last item that was put into the buffer is terminal.
    """

    def __init__(
        self,
        *,
        after: int = -1,
        epoch: int = 1,
        items_max: int = BUFFER_ITEMS_MAX,
        bytes_max: int = BUFFER_BYTES_MAX,
    ) -> None:
        self.items: list[StreamItem] = []
        # Ids sort by attempt first, and an epoch has the number of its first attempt.
        self.cursor: tuple[int, int] | None = None if after < 0 else (epoch, after)
        self.is_complete = False
        self._next = after + 1
        self._epoch = epoch
        self._bytes = 0
        self._items_max = items_max
        self._bytes_max = bytes_max
        self._lagging = True
        self._announced_meanwhile = False
        #: Epoch and number of a terminal item that cannot be taken.
        self._end_beyond_gap = (0, -1)

    @property
    def needs_page(self) -> bool:
        """Whether the next item must come from the store."""
        return self._lagging and not self.items

    @property
    def is_broken(self) -> bool:
        """Whether the job has ended and the store lacks items before its end."""
        is_beyond = (self._epoch, self._next) <= self._end_beyond_gap
        return is_beyond and not self.items and not self._lagging

    def take(self) -> list[StreamItem]:
        """Return the items in the buffer, and empty it."""
        taken, self.items, self._bytes = self.items, [], 0
        return taken

    def end_with(self, items: Sequence[StreamItem]) -> None:
        """Have these items as the last ones, instead of those in the buffer."""
        self.items = list(items)
        self.is_complete = True

    def lag(self) -> None:
        """Record that announcements may have been missed."""
        self._lagging = True
        self._announced_meanwhile = True

    def announced(self, item: StreamItem, size: int) -> None:
        """Buffer an announced item, or record that it must be read from the store."""
        if item.n is None:
            if item.epoch == self._epoch and not self._lagging:
                self._put(item, size)
        elif (item.epoch, item.n) >= (self._epoch, self._next):
            if self._take(item, size):
                # All items before it are known, and all items after it will be announced.
                self._lagging = False
            else:
                self.lag()

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
        if is_last:
            # The page may lack items that were announced while it was read.
            self._lagging = self._announced_meanwhile

    def _put(self, item: StreamItem, size: int) -> bool:
        full = len(self.items) >= self._items_max or self._bytes + size > self._bytes_max
        if full and self.items:
            return False
        self.items.append(item)
        self._bytes += size
        self.is_complete = item.is_terminal
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
            self.items.clear()
        if not self._put(item, size):
            return False
        self._next += 1
        self._move_cursor(item)
        return True

    def _move_cursor(self, item: StreamItem) -> None:
        here = (item.attempt, item.n or 0)
        if self.cursor is None or here > self.cursor:
            self.cursor = here


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """Opens the items of jobs.

    Attributes:
        source: Live and stored items; belongs to the event loop.
        backlog: The stored items, for calls that block.
        look_s: How long a stream stays silent before it reads the log, in seconds.
    """

    source: ItemSource
    backlog: ItemBacklog
    records: JobRecords
    call: BlockingCalls
    look_s: float = 2.0

    async def open_job(
        self, job_id: JobId, request: Request, *, after: int = -1, attempt: int = 1
    ) -> OpenJob:
        """Return the items of an existing job above ``after``, up to the terminal one.

        ``attempt`` is the attempt that emitted ``after``. If its epoch is over, the items of the
        present one follow from their beginning.

        Raises:
            JobNotFound: There is no such job.
            LogUnavailable: The log cannot be read.
        """
        records, backlog = self.records, self.backlog

        def read() -> tuple[ReaderPosition, Sequence[StreamItem] | None]:
            position = records.position_of(job_id, after, attempt, backlog)
            return position, records.rest_of(job_id, position, backlog)

        position, rest = await self.call(read)
        job = OpenJob(job_id, self, request, position)
        # Of a job that goes on, the store is read once announcements are on their way.
        job.start(rest)
        return job


class ClientGone(Exception):
    """The client has left."""


class OpenJob:
    """The items of a job for one connection.

    They end with the last one, the client's leaving or the end of the process. One wait returns
    all items that have come: a busy stream costs one wake-up per batch. A later epoch ends the
    items with ``ModelChanged`` after output of an earlier one was taken, since that cannot be
    taken back.

    Args:
        job_id: The job; it may be submitted after this object was made.
        request: The connection, with its ``gone`` and ``ending``.
        position: What the client has already.

    Attributes:
        attached: Why the request joined an earlier job, if it did.
        reading: The connection as a reader; ``None`` for a job that runs on without it.
        begins_anew: Set by a reader that has delivered nothing and can drop what it took: a later
            epoch then follows the earlier one.
    """

    def __init__(
        self, job_id: JobId, feed: Feed, request: Request, position: ReaderPosition | None = None
    ) -> None:
        self.id = job_id
        self.attached: str | None = None
        self.reading: JobReading | None = None
        self.begins_anew = False
        self._feed = feed
        self._request = request
        self._position = position or ReaderPosition()
        self._merge = ItemMerge(after=self._position.n, epoch=self._position.epoch)
        self._epoch = self._position.epoch
        # Item 0 is no output, so a client that has no other one can begin anew.
        self._has_output = self._position.n > 0
        self._error: Exception | None = None
        self._wake = asyncio.Event()
        self._filling: asyncio.Task[None] | None = None
        self._stir = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._give_up_at_s: float | None = None
        feed.source.register(job_id, self)
        request.gone.watch(self._on_signal)
        request.ending.watch(self._on_signal)

    def start(self, rest: Sequence[StreamItem] | None = None) -> None:
        """Begin to read the store, unless ``rest`` has all that follows."""
        if rest is None:
            self._filling = self._loop.create_task(self._fill())
        else:
            self._end_with(rest)

    def read_by(self, reading: JobReading, *, attached: str | None = None) -> None:
        """Have a reading that is abandoned when the client leaves before the last item."""
        self.reading, self.attached = reading, attached
        self._on_signal()

    def delivered(self) -> None:
        """Record that the client has the whole answer."""
        if self.reading is not None:
            self.reading.delivered()

    def abandon(self, reason: str) -> None:
        """Record that the connection ended before the answer was delivered."""
        if self.reading is not None:
            self.reading.abandon(reason)

    @property
    def complete(self) -> bool:
        """Whether the last item has arrived, read or not."""
        return self._merge.is_complete

    @property
    def is_over(self) -> bool:
        """Whether the last item was taken; also that of an earlier connection."""
        return self._merge.is_complete and not self._merge.items

    @property
    def ready(self) -> bool:
        """Whether ``take`` returns or raises something."""
        is_over = self.complete or self._error is not None
        return bool(
            self._merge.items
            or is_over
            or self._request.gone.is_set()
            or self._request.ending.is_set()
        )

    def wake_with(self, wake: asyncio.Event) -> None:
        """Set ``wake`` whenever this may have become ready; ``batch`` must not be used then."""
        self._wake = wake

    async def batch(self, timeout_s: float | None) -> list[StreamItem]:
        """Return the items since the last call; none if none came in time.

        Args:
            timeout_s: How long to wait for the first item; ``None``: for ever.

        Raises:
            ClientGone: The client has left.
            Draining: The process ends its streams.
            ModelChanged: The answer begins anew under another model.
            QueueUnavailable: The broker stays unreachable.
            EngineFailure: The items ended without a last one.
        """
        return self.take() if await self._ready_within(timeout_s) else []

    async def peek(self, timeout_s: float) -> StreamItem | None:
        """Return the next item without taking it, ``None`` if there is none in time.

        The next ``batch`` raises what ended the items.
        """
        await self._ready_within(timeout_s)
        return self._merge.items[0] if self._merge.items else None

    async def _ready_within(self, timeout_s: float | None) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready:
                    await self._wake.wait()
                    self._wake.clear()
        except TimeoutError:
            return False
        return True

    def take(self) -> list[StreamItem]:
        """Return the items since the last call, once this is ready; raises as ``batch`` does."""
        if self._request.gone.is_set():
            raise ClientGone
        if taken := self._merge.take():
            for item in taken:
                self._position.add(item)
            self._advance()
            self._check_epoch(taken)
            return taken
        if self._request.ending.is_set():
            raise Draining("the server is shutting down; try again in a moment")
        raise self._error or EngineFailure("the stream of this job broke off")

    async def close(self) -> None:
        """End the subscription; nothing can be read afterwards."""
        self._feed.source.unregister(self.id, self)
        self._request.gone.unwatch(self._on_signal)
        self._request.ending.unwatch(self._on_signal)
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.gather(self._filling, return_exceptions=True)

    def announced(self, item: StreamItem, size: int) -> None:
        """Receive an item that was published; called by the source."""
        if not self._merge.is_complete:
            self._merge.announced(item, size)
            self._advance()

    def lag(self) -> None:
        """Note that announcements may have been missed; called by the source."""
        self._merge.lag()
        self._advance()

    def _advance(self) -> None:
        """Wake the reader if there are items, else the reading of the store if it has them."""
        if self._merge.items:
            self._wake.set()
        elif self._merge.needs_page or self._merge.is_broken:
            self._stir.set()

    def _check_epoch(self, taken: Sequence[StreamItem]) -> None:
        epoch = taken[-1].epoch
        if epoch > self._epoch:
            if self._has_output and not self.begins_anew:
                raise ModelChanged
            self._epoch, self._has_output = epoch, False
        if not self._has_output and any(is_output(item.body) for item in taken):
            self._has_output = True
            self._request.marks.deliver()

    def _on_signal(self) -> None:
        self._wake.set()
        if self._request.gone.is_set() and not self.complete:
            self.abandon(CLIENT_GONE)

    def _end_with(self, rest: Sequence[StreamItem]) -> None:
        self._feed.source.unregister(self.id, self)
        self._merge.end_with(rest)
        self._wake.set()

    # The task of a stream: it reads what is not announced.

    async def _fill(self) -> None:
        try:
            await self._fill_until_complete()
        except Exception as error:  # noqa: BLE001 - the reader raises it
            self._error = error
            self._wake.set()

    async def _fill_until_complete(self) -> None:
        """Read the store where announcements do not suffice, and the log where nothing comes."""
        before, look_s = replace(self._position), self._feed.look_s
        look_at_s = self._loop.time() + look_s
        while not self._merge.is_complete:
            failure: QueueUnavailable | None = None
            try:
                async with asyncio.timeout_at(look_at_s):
                    await self._read_store()
                    await self._stir.wait()
                self._stir.clear()
                continue
            except TimeoutError:
                pass
            except QueueUnavailable as error:
                failure = error
            if failure is None and (self._merge.items or self._position != before):
                look_s = self._feed.look_s
            else:
                await self._look(failure)
                look_s = min(2 * look_s, LOOK_MAX_S)
            before, look_at_s = replace(self._position), self._loop.time() + look_s

    async def _read_store(self) -> None:
        """Read pages until there are items, or until all that follow will be announced.

        Raises:
            QueueUnavailable: The broker is away for too long, or it has lost items.
        """
        merge = self._merge
        while merge.needs_page:
            merge.begin_page()
            try:
                page = await self._feed.source.read_page(self.id, merge.cursor)
            except QueueUnavailable:
                now_s = self._loop.time()
                self._give_up_at_s = self._give_up_at_s or now_s + UNREACHABLE_MAX_S
                if now_s >= self._give_up_at_s:
                    raise
                await asyncio.sleep(RETRY_S)
            else:
                self._give_up_at_s = None
                merge.page(page.items, is_last=page.is_last)
        if merge.is_broken:
            raise QueueUnavailable(f"the broker lost items of {self.id}; its result is in the log")
        self._advance()

    async def _look(self, failure: QueueUnavailable | None) -> None:
        """Take the rest from the log if the job has ended and no item came meanwhile.

        Raises:
            QueueUnavailable: That ``failure``, if the log has no rest.
        """
        feed, before = self._feed, replace(self._position)
        try:
            rest = await feed.call(feed.records.rest_of, self.id, before, feed.backlog)
        except SemanticError as error:
            structlog.get_logger(__name__).warning("look_failed", job_id=self.id, error=error.code)
            rest = None
        if rest and before == self._position and not self._merge.items:
            self._end_with(rest)
        elif failure is not None:
            raise failure
        else:
            # Announcements can be lost without an error.
            self._merge.lag()
