"""A job that one connection reads, and what happens to it when that connection ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from api.services import Services
from api.streaming.item_buffer import ItemBuffer
from domain.errors import Draining, SemanticError
from domain.values import JobId

#: How long the cancellation of an abandoned job may take, in seconds.
CANCEL_TIMEOUT_S: Final = 10.0


class JobReading:
    """One connection that waits for the answer of a job; told once how it ended.

    Args:
        job_id: The job; it counts as read from here on.
        services: The ports.
    """

    def __init__(self, job_id: JobId, services: Services) -> None:
        self._job_id = job_id
        self._services = services
        self._over = False
        services.readers.begin(job_id)

    def delivered(self) -> None:
        """Say that the client has the whole answer."""
        if not self._over:
            self._over = True
            self._services.readers.end(self._job_id, delivered=True)

    def abandon(self, reason: str) -> None:
        """Say that this connection is over and the answer is not delivered.

        The job goes on for ``linger_s``, for the client may ask again; then it is cancelled in the
        background, unless somebody joined it. When the process itself ends, the job is left alone:
        its client finds it when the process is back.
        """
        if self._over:
            return
        self._over = True
        services = self._services
        departure = services.readers.end(self._job_id, delivered=False)
        linger_s = services.rules.linger_s
        if departure is None or (reason == Draining.code and linger_s):
            return
        services.background.start(
            _cancel_unless_joined(self._job_id, departure, reason, services, linger_s=linger_s)
        )

    def revoke(self, reason: str) -> None:
        """Say that the job should not have been accepted; it is cancelled at once."""
        self._over = True
        departure = self._services.readers.end(self._job_id, delivered=False) or 0
        self._services.background.start(
            _cancel_unless_joined(self._job_id, departure, reason, self._services, linger_s=0)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """A job that is followed for one connection from its first item.

    Attributes:
        id: The job.
        feed: Its items.
        reading: Told how the connection ended.
        attached: Why the request joined an earlier job, if it did.
    """

    id: JobId
    feed: ItemBuffer
    reading: JobReading
    attached: str | None = None


async def _cancel_unless_joined(
    job_id: JobId, departure: int, reason: str, services: Services, *, linger_s: float
) -> None:
    """Cancel a job that nobody waits for any more; a failure costs work, not truth."""
    if linger_s:
        await services.pause(linger_s)
    if not services.readers.give_up(job_id, departure):
        return
    try:
        async with asyncio.timeout(CANCEL_TIMEOUT_S):
            await services.call(services.cancellation.cancel, job_id, reason=reason)
    except (SemanticError, TimeoutError) as error:
        structlog.get_logger(__name__).warning(
            "cancel_failed", job_id=job_id, reason=reason, error=repr(error)
        )
