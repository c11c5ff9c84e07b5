"""The items of a job for one reader, completed from the log where the broker loses some.

The end of a job is recorded in the log before it is published, so the broker may lose it. A
subscription that receives nothing for a while therefore reads the log, and so does one whose items
the broker has lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from copy import copy
from typing import Final, Self

import structlog

from api.background.tasks import BlockingCalls
from api.http.messages import Closable
from api.streaming.log_backfill import LogBackfill, ReaderPosition
from domain.chat.items import StreamItem
from domain.errors import QueueUnavailable, SemanticError
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
