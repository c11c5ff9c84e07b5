"""The items of a job that exists already, whatever has become of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from api.services import Services
from api.streaming.item_subscription import ItemSubscription
from api.streaming.log_backfill import ReaderPosition, rest_of, stored_items, told_until
from domain.chat.items import StreamItem
from domain.errors import JobNotFound
from domain.values import JobId


async def follow_job(
    job_id: JobId, *, after: int, services: Services
) -> AsyncIterator[StreamItem] | None:
    """Return the items of a job above ``after``, up to the terminal one.

    Returns:
        ``None`` if the job has ended and its end is known to whoever has ``after``.

    Raises:
        JobNotFound: There is no such job.
        LogUnavailable: The log cannot be read.
    """
    told = await services.call(_told, job_id, after, services)
    # Followed before the look at the job, so that an end between the two is not missed.
    items = ItemSubscription(job_id, services, told=told)
    try:
        past = await services.call(rest_of, job_id, told, services)
    except BaseException:
        await items.aclose()
        raise
    if past is None:
        return items
    await items.aclose()
    return _tell(past) if past else None


def _told(job_id: JobId, after: int, services: Services) -> ReaderPosition:
    if services.views.get(job_id) is None:
        raise JobNotFound(job_id)
    return ReaderPosition() if after < 0 else told_until(after, stored_items(job_id, services))


async def _tell(items: Sequence[StreamItem]) -> AsyncIterator[StreamItem]:
    for item in items:
        yield item
