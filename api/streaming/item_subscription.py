"""The items of a job for one reader, told to the end even if the broker loses some of them.

The broker is a wire: what runs over it may be lost with it, the end of a job above all, since it is
recorded before it is said. A reader that hears nothing for a while therefore looks into the log,
and so does one whose items cannot be had any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from copy import copy
from typing import Final, Protocol, Self, runtime_checkable

import structlog

from api.services import Services
from api.streaming.log_backfill import ReaderPosition, rest_of
from domain.chat.items import StreamItem
from domain.errors import QueueUnavailable, SemanticError
from domain.values import JobId

#: What doubling the time between two looks of a silent reader ends at, in seconds.
LOOK_MAX_S: Final = 10.0


@runtime_checkable
class _Closable(Protocol):
    def aclose(self) -> Awaitable[object]: ...


class ItemSubscription(AsyncIterator[StreamItem]):
    """Like the iterator of ``ItemSource.follow``, and it ends if the job has ended.

    It may be awaited by one task at a time. Cancelling that task loses no item.

    Args:
        job_id: The job; it may be submitted after this object was made.
        services: The ports.
        told: What the reader has already.
    """

    def __init__(
        self, job_id: JobId, services: Services, *, told: ReaderPosition | None = None
    ) -> None:
        self._job_id = job_id
        self._services = services
        self._told = ReaderPosition() if told is None else told
        self._items: AsyncIterator[StreamItem] = services.source.follow(job_id, after=self._told.n)
        self._rest: deque[StreamItem] = deque()
        self._over = False
        self._waiting = False
        self._quiet = False
        self._loop = asyncio.get_running_loop()
        self._look_s = services.look_s
        self._timer = self._loop.call_later(self._look_s, self._due)
        self._looking: asyncio.Task[None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamItem:
        while not self._over:
            item = self._rest.popleft() if self._rest else await self._hear()
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

    async def _hear(self) -> StreamItem | None:
        """Return what the broker brings, ``None`` if the rest was found in the log instead."""
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
        self._told.add(item)
        return item

    def _due(self) -> None:
        """Look into the log if the reader waited all the time and nothing came."""
        if self._waiting and self._quiet:
            self._looking = self._loop.create_task(self._look_and_go_on())
            return
        if not self._quiet:
            self._look_s = self._services.look_s
        self._quiet = True
        self._timer = self._loop.call_later(self._look_s, self._due)

    async def _look_and_go_on(self) -> None:
        try:
            await self._look()
        except SemanticError as error:
            structlog.get_logger(__name__).warning(
                "look_failed", job_id=self._job_id, error=error.code
            )
        if self._rest:
            # Whoever waits for the broker is woken by this, and finds the rest.
            await close_items(self._items)
            return
        self._look_s = min(2 * self._look_s, LOOK_MAX_S)
        self._timer = self._loop.call_later(self._look_s, self._due)

    async def _look(self) -> None:
        """Take the rest from the log, unless the job goes on or an item came meanwhile."""
        before = copy(self._told)
        rest = await self._services.call(rest_of, self._job_id, before, self._services)
        if rest and before == self._told and not self._rest:
            self._rest.extend(rest)


async def close_items(items: AsyncIterator[StreamItem]) -> None:
    """End a subscription; the port's iterators may be generators or objects of their own."""
    if isinstance(items, _Closable):
        await items.aclose()
