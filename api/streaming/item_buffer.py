"""The items of a job for one reader: a subscription, and a bounded buffer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from copy import copy
from typing import Final, Self

import structlog

from api.background.tasks import BlockingCalls
from api.http.messages import Closable, Request
from api.streaming.log_backfill import LogBackfill, ReaderPosition
from domain.chat.items import Progress, StreamItem, is_output
from domain.errors import Draining, EngineFailure, ModelChanged, QueueUnavailable, SemanticError
from domain.job.ports import ItemSource
from domain.values import JobId

#: The longest time between two reads of the log by a silent subscription, in seconds.
LOOK_MAX_S: Final = 10.0


class ItemSubscription(AsyncIterator[StreamItem]):
    """The iterator of ``ItemSource.follow``, which also ends when the log has the job's end.

    One task at a time may await it. Cancelling that task loses no item.

    Args:
        job_id: The job; it may be submitted after this object was made.
        source: Live items.
        backfill: What is missing of a job that has ended.
        call: Runs what blocks.
        look_s: Silence before the first read of the log, in seconds; doubles up to ``LOOK_MAX_S``.
        position: What the reader has already.
    """

    def __init__(
        self,
        job_id: JobId,
        *,
        source: ItemSource,
        backfill: LogBackfill,
        call: BlockingCalls,
        look_s: float,
        position: ReaderPosition | None = None,
    ) -> None:
        self._job_id = job_id
        self._backfill = backfill
        self._call = call
        self._position = ReaderPosition() if position is None else position
        self._items: AsyncIterator[StreamItem] = source.follow(
            job_id, after=self._position.n, epoch=self._position.epoch
        )
        self._rest: deque[StreamItem] = deque()
        self._over = False
        self._waiting = False
        self._quiet = False
        self._loop = asyncio.get_running_loop()
        self._look_first_s = look_s
        self._look_s = look_s
        self._timer = self._loop.call_later(look_s, self._on_timer)
        self._looking: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamItem:
        while not self._over:
            item = self._rest.popleft() if self._rest else await self._receive()
            if item is None:
                continue
            if item.is_terminal:
                await self.aclose()
            return item
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the subscription; a second call does nothing."""
        self._over = True
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await close_items(self._items)

    async def _receive(self) -> StreamItem | None:
        """Return the broker's next item, ``None`` if the log provided the rest instead."""
        self._waiting = True
        try:
            item = await anext(self._items)
        except StopAsyncIteration:
            if self._rest:
                return None
            raise
        except QueueUnavailable:
            await self._look()
            if self._rest:
                return None
            raise
        finally:
            self._waiting = False
        self._quiet = False
        self._position.add(item)
        return item

    def _on_timer(self) -> None:
        """Read the log if the reader has waited the whole time and no item came."""
        if self._waiting and self._quiet:
            self._looking = self._loop.create_task(self._look_and_rearm())
            return
        if not self._quiet:
            self._look_s = self._look_first_s
        self._quiet = True
        self._timer = self._loop.call_later(self._look_s, self._on_timer)

    async def _look_and_rearm(self) -> None:
        try:
            await self._look()
        except SemanticError as error:
            structlog.get_logger(__name__).warning(
                "look_failed", job_id=self._job_id, error=error.code
            )
        if self._rest:
            # Closing the broker's iterator wakes the waiting reader, which then takes the rest.
            await close_items(self._items)
            return
        self._look_s = min(2 * self._look_s, LOOK_MAX_S)
        self._timer = self._loop.call_later(self._look_s, self._on_timer)

    async def _look(self) -> None:
        """Take the rest from the log if the job has ended and no item came meanwhile."""
        before = copy(self._position)
        rest = await self._call(self._backfill.rest_of, self._job_id, before)
        if rest and before == self._position and not self._rest:
            self._rest.extend(rest)


async def close_items(items: AsyncIterator[StreamItem]) -> None:
    """Close an iterator of items that has an ``aclose``."""
    if isinstance(items, Closable):
        await items.aclose()


#: Items taken from the source ahead of the reader. The source waits without loss, so the buffer
#: only joins the items that arrive between two reads.
BUFFER_ITEMS_MAX: Final = 256


class ClientGone(Exception):
    """The client has left."""


class ItemBuffer:
    """Items as they come, until the last one, the client's leaving or the end of the process.

    One wait returns all items that have come: a busy stream costs one wake-up per batch instead of
    one per item.

    An epoch that begins after output of another one was taken ends the items with ``ModelChanged``,
    since that output cannot be taken back; before any output it replaces the earlier items.

    Args:
        items: From ``ItemSource.follow``; owned and closed by this object.
        request: The connection, with its ``gone`` and ``ending``.
        on_gone: Called once when the client leaves before the last item, read or not; ``None``
            for a job that runs on without this reader.
        attempt: Attempt of the last item that the client has from an earlier connection, 0 if it
            has no output.

    Attributes:
        begins_anew: Set by a reader that has delivered nothing and can drop what it took: a later
            epoch then follows the earlier one.
    """

    def __init__(
        self,
        items: AsyncIterator[StreamItem],
        request: Request,
        *,
        on_gone: Callable[[], None] | None = None,
        attempt: int = 0,
    ) -> None:
        self._items = items
        self._request = request
        self._on_gone = on_gone
        self._epoch = max(1, attempt)
        self._has_output = attempt > 0
        self.begins_anew = False
        self._buffer: deque[StreamItem] = deque()
        self._complete = False
        self._gone_reported = False
        self._wake = asyncio.Event()
        self._drained = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._pumping = loop.create_task(self._pump())
        self._watching = (
            loop.create_task(self._watch_gone()),
            loop.create_task(self._watch_ending()),
        )

    @property
    def complete(self) -> bool:
        """Whether the last item has arrived, read or not."""
        return self._complete

    @property
    def ready(self) -> bool:
        """Whether ``take`` returns or raises something."""
        request = self._request
        over = request.gone.is_set() or request.ending.is_set() or self._pumping.done()
        return over or bool(self._buffer)

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
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready:
                    await self._wake.wait()
                    self._wake.clear()
        except TimeoutError:
            return []
        return self.take()

    async def peek(self, timeout_s: float) -> StreamItem | None:
        """Return the next item without taking it, ``None`` if there is none in time.

        The next ``batch`` raises what ended the items.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not self.ready:
                    await self._wake.wait()
                    self._wake.clear()
        except TimeoutError:
            return None
        return self._buffer[0] if self._buffer else None

    def take(self) -> list[StreamItem]:
        """Return the items since the last call, once this is ready; raises as ``batch`` does."""
        if self._request.gone.is_set():
            self._report_gone()
            raise ClientGone
        if self._buffer:
            taken = list(self._buffer)
            self._buffer.clear()
            self._drained.set()
            return self._of_one_epoch(taken)
        if self._request.ending.is_set():
            msg = "the server is shutting down; try again in a moment"
            raise Draining(msg)
        self._pumping.result()  # raises what the source raised
        msg = "the stream of this job broke off"
        raise EngineFailure(msg)

    async def close(self) -> None:
        """End the subscription; nothing can be read afterwards."""
        tasks = (self._pumping, *self._watching)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await close_items(self._items)

    async def _pump(self) -> None:
        try:
            async for item in self._items:
                self._buffer.append(item)
                self._complete = item.is_terminal
                self._wake.set()
                if item.is_terminal:
                    return
                while len(self._buffer) >= BUFFER_ITEMS_MAX:
                    self._drained.clear()
                    await self._drained.wait()
        finally:
            # Also wakes the reader when the source failed or ended.
            asyncio.get_running_loop().call_soon(self._wake.set)

    def _of_one_epoch(self, taken: list[StreamItem]) -> list[StreamItem]:
        """Return the items of the newest epoch; ``Progress`` belongs to any."""
        epochs = [item.epoch for item in taken if not isinstance(item.body, Progress)]
        newest = max(epochs, default=self._epoch)
        if newest > self._epoch:
            if self._has_output and not self.begins_anew:
                raise ModelChanged
            taken = [item for item in taken if item.epoch == newest]
            self._epoch, self._has_output = newest, False
        if not self._has_output and any(is_output(item.body) for item in taken):
            self._has_output = True
            self._request.marks.deliver()
        return taken

    def _report_gone(self) -> None:
        """Call ``on_gone`` once; the reader may notice before the watching task has run."""
        if self._on_gone is not None and not self._complete and not self._gone_reported:
            self._gone_reported = True
            self._on_gone()

    async def _watch_gone(self) -> None:
        await self._request.gone.wait()
        self._wake.set()
        self._report_gone()

    async def _watch_ending(self) -> None:
        await self._request.ending.wait()
        self._wake.set()
