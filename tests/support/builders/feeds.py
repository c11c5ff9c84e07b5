"""A feed without the rest of the api, and the items of a job one by one."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from api.calls import BlockingCalls
from api.http.messages import Request
from api.streaming.feed import Feed, OpenJob
from domain.audit.recorded_answers import JobRecords
from domain.chat.items import StreamItem
from domain.chat.stored_answer import ReaderPosition
from domain.job.ports import ItemBacklog, ItemSource
from domain.values import JobId
from tests.support.fakes.broker import FakeItems
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock

#: Long enough that a test does not see it.
NEVER_S = 3600.0


class FeedOfItems:
    """Reads the items of jobs that the log does not know."""

    def __init__(
        self, source: ItemSource, backlog: ItemBacklog | None = None, *, look_s: float = NEVER_S
    ) -> None:
        self.source = source
        log = InMemoryEventLog(FakeClock())
        self._feed = Feed(
            source=source,
            backlog=backlog or FakeItems(),
            records=JobRecords(log=log, payloads=log, views=log.views),
            call=BlockingCalls(ThreadPoolExecutor(1)),
            look_s=look_s,
        )

    def follow(self, job_id: JobId, *, after: int = -1, epoch: int = 1) -> ItemsOfJob:
        """Return the items above ``after``, announced ones from now on."""
        return ItemsOfJob(self._feed, job_id, ReaderPosition(n=after, epoch=epoch))


class ItemsOfJob(AsyncIterator[StreamItem]):
    """The items of a job one by one; each epoch replaces the one before."""

    def __init__(self, feed: Feed, job_id: JobId, position: ReaderPosition) -> None:
        request = Request(id="req-1", method="GET", path=f"/v1/jobs/{job_id}/stream")
        self.job = OpenJob(job_id, feed, request, position)
        self.job.begins_anew = True
        self.job.start()
        self._taken = deque[StreamItem]()
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamItem:
        if self._is_over:
            raise StopAsyncIteration
        if not self._taken:
            try:
                self._taken += await self.job.batch(None)
            except Exception:
                await self.aclose()
                raise
        item = self._taken.popleft()
        if item.is_terminal:
            await self.aclose()
        return item

    async def aclose(self) -> None:
        self._is_over = True
        await self.job.close()
