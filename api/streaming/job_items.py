"""The items of a job from any number on: live from the broker, or stored once the job has ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from api.background.tasks import BlockingCalls
from api.http.messages import Request
from api.streaming.item_buffer import ClientGone, ItemBuffer, ItemSubscription
from api.streaming.log_backfill import LogBackfill, ReaderPosition, position_after
from domain.chat.items import StreamItem
from domain.errors import EngineFailure, JobNotFound, SemanticError
from domain.job.ports import ItemSource
from domain.values import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobItems:
    """Opens the items of a job for a reader.

    Attributes:
        source: Live items; belongs to the event loop.
        backfill: Items and answers of jobs that have ended.
        call: Runs what blocks.
        look_s: How long a subscription stays silent before it reads the log, in seconds.
    """

    source: ItemSource
    backfill: LogBackfill
    call: BlockingCalls
    look_s: float = 2.0

    def subscribe(
        self, job_id: JobId, *, position: ReaderPosition | None = None
    ) -> ItemSubscription:
        """Return the items behind a position; the job may be submitted afterwards."""
        return ItemSubscription(
            job_id,
            source=self.source,
            backfill=self.backfill,
            call=self.call,
            look_s=self.look_s,
            position=position,
        )

    async def reattach(
        self, job_id: JobId, *, after: int, attempt: int = 1
    ) -> AsyncIterator[StreamItem] | None:
        """Return the items of an existing job above ``after``, up to the terminal one.

        ``attempt`` is the attempt that emitted ``after``. If its epoch is over, the items of the
        present one follow from their beginning.

        Returns:
            ``None`` if the job has ended and a reader that has ``after`` has its end.

        Raises:
            JobNotFound: There is no such job.
            LogUnavailable: The log cannot be read.
        """
        position = await self.call(self._position, job_id, after, attempt)
        # Subscribed before the job is read, so that an end between the two is not missed.
        items = self.subscribe(job_id, position=position)
        try:
            rest = await self.call(self.backfill.rest_of, job_id, position)
        except BaseException:
            await items.aclose()
            raise
        if rest is None:
            return items
        await items.aclose()
        return _iterate(rest) if rest else None

    async def reattach_first(self, job_id: JobId) -> AsyncIterator[StreamItem]:
        """Return the items of an existing job from its first one; see ``reattach``."""
        items = await self.reattach(job_id, after=-1)
        if items is None:  # a reader without any item lacks at least the terminal one
            raise EngineFailure("the answer of this job cannot be found")
        return items

    async def wait_for_end(self, job_id: JobId, wait_s: float, request: Request) -> None:
        """Wait until the job has ended, the time is up, or the client has left.

        The job runs on in any case. Errors end the wait: the caller shows the job as it is.
        """
        with suppress(ClientGone, SemanticError):
            items = await self.reattach(job_id, after=-1)
            if items is None:
                return
            buffer = ItemBuffer(items, request)
            buffer.begins_anew = True
            try:
                async with asyncio.timeout(wait_s):
                    while not buffer.complete:
                        await buffer.batch(None)
            except TimeoutError:
                return
            finally:
                await buffer.close()

    def _position(self, job_id: JobId, after: int, attempt: int) -> ReaderPosition:
        view = self.backfill.records.views.get(job_id)
        if view is None:
            raise JobNotFound(job_id)
        if after < 0:
            return ReaderPosition()
        # The epoch of an attempt of an earlier epoch is not known, and does not matter.
        epoch = min(attempt, view.epoch)
        return position_after(after, epoch, self.backfill.stored_items(job_id))


async def _iterate(items: Sequence[StreamItem]) -> AsyncIterator[StreamItem]:
    for item in items:
        yield item
