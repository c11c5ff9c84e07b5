"""The connections that wait for the answer of each job, and what happens when they end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

import structlog

from api.calls import Background, BlockingCalls
from domain.errors import Draining, SemanticError
from domain.job.cancel import JobCancellation
from domain.job.request_dedup import Readership
from domain.values import JobId

#: Jobs without a reader whose readership is remembered; that of older ones is unknown.
LEFT_MAX: Final = 4_096
#: How long the cancellation of an abandoned job may take, in seconds.
CANCEL_TIMEOUT_S: Final = 10.0
#: The reason of a cancellation whose client closed its connection.
CLIENT_GONE: Final = "client_gone"


@dataclass(slots=True)
class _LeftJob:
    state: Readership
    departure: int


class ConnectionRegistry:
    """Counts the connections of each job.

    It belongs to one event loop and is lost with the process: the readership of every job is
    unknown afterwards.
    """

    def __init__(self, *, left_max: int = LEFT_MAX) -> None:
        self._left_max = left_max
        self._connections = Counter[JobId]()
        #: In the order in which their last readers left.
        self._left: dict[JobId, _LeftJob] = {}
        self._departures = count(1)
        self._departed: set[asyncio.Event] = set()

    def state(self, job_id: JobId) -> Readership:
        """Return what is known of the readers of a job."""
        if job_id in self._connections:
            return Readership.READING
        left = self._left.get(job_id)
        return Readership.UNKNOWN if left is None else left.state

    def begin(self, job_id: JobId) -> None:
        """Count a connection that waits for the answer; a lost job has a reader again."""
        self._connections[job_id] += 1
        self._left.pop(job_id, None)

    def end(self, job_id: JobId, *, delivered: bool) -> int | None:
        """Remove a connection that began; ``JobReading`` ends each once.

        Args:
            delivered: Whether the client got the whole answer.

        Returns:
            A departure number for ``give_up`` if this was the last reader and the answer is not
            delivered, else ``None``.
        """
        self._connections[job_id] -= 1
        if self._connections[job_id]:
            return None
        del self._connections[job_id]
        state = Readership.DELIVERED if delivered else Readership.LOST
        left = self._left[job_id] = _LeftJob(state, next(self._departures))
        if len(self._left) > self._left_max:
            del self._left[next(iter(self._left))]
        for event in self._departed:
            event.set()
        return None if delivered else left.departure

    def give_up(self, job_id: JobId, departure: int) -> bool:
        """Close a lost job to further readers.

        Args:
            departure: From ``end``.

        Returns:
            Whether the job is still lost by that departure; ``False`` if a reader joined since.
        """
        left = self._left.get(job_id)
        if left is None:
            # It has a reader, or was dropped in favour of jobs that were left later.
            return job_id not in self._connections
        if left.state is not Readership.LOST or left.departure != departure:
            return False
        left.state = Readership.GIVEN_UP
        return True

    async def wait_for_departure(self, timeout_s: float) -> None:
        """Wait until the last reader of any job leaves, or until the time is up."""
        departed = asyncio.Event()
        self._departed.add(departed)
        try:
            async with asyncio.timeout(timeout_s):
                await departed.wait()
        except TimeoutError:
            return
        finally:
            self._departed.discard(departed)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReaders:
    """Cancels a job when its last reader has left without the answer.

    Attributes:
        grace_s: How long a job waits for a new reader before it is cancelled, in seconds.
    """

    connections: ConnectionRegistry = field(default_factory=ConnectionRegistry)
    cancellation: JobCancellation
    background: Background
    call: BlockingCalls
    grace_s: float = 1.0
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    def begin(self, job_id: JobId) -> JobReading:
        """Count a connection that waits for the answer of a job; its log lines name the job."""
        structlog.contextvars.bind_contextvars(job_id=job_id)
        return JobReading(job_id, self)

    async def cancel_unless_joined(
        self, job_id: JobId, departure: int, reason: str, *, grace_s: float
    ) -> None:
        """Cancel a job after a grace period in which no reader joined.

        A failure is logged: the job then runs on, which costs work and loses nothing.
        """
        if grace_s:
            await self.pause(grace_s)
        if not self.connections.give_up(job_id, departure):
            return
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await self.call(self.cancellation.cancel, job_id, reason=reason)
        except (SemanticError, TimeoutError) as error:
            structlog.get_logger(__name__).warning(
                "cancel_failed", job_id=job_id, reason=reason, error=repr(error)
            )


class JobReading:
    """One connection that waits for the answer of a job; only its first end counts.

    Args:
        job_id: The job; it has a reader from here on.
    """

    def __init__(self, job_id: JobId, readers: JobReaders) -> None:
        self._job_id = job_id
        self._readers = readers
        self._over = False
        readers.connections.begin(job_id)

    def delivered(self) -> None:
        """Record that the client has the whole answer."""
        self._end(delivered=True)

    def abandon(self, reason: str) -> None:
        """Record that the connection ended before the answer was delivered.

        The job runs on for the grace period, since the client may repeat its request; then it is
        cancelled in the background, unless a reader joined. A process that is draining cancels
        nothing: the client finds the job when the process is back.
        """
        departure, grace_s = self._end(), self._readers.grace_s
        if departure is not None and not (reason == Draining.code and grace_s):
            self._cancel(departure, reason, grace_s)

    def revoke(self, reason: str) -> None:
        """Cancel a job at once that should not have been accepted.

        A reading that was abandoned before does nothing: its job is cancelled after the grace
        period.
        """
        if not self._over:
            self._cancel(self._end() or 0, reason, 0)

    def _end(self, *, delivered: bool = False) -> int | None:
        """Return the departure of a last reader that leaves without the answer."""
        if self._over:
            return None
        self._over = True
        return self._readers.connections.end(self._job_id, delivered=delivered)

    def _cancel(self, departure: int, reason: str, grace_s: float) -> None:
        readers = self._readers
        readers.background.start(
            readers.cancel_unless_joined(self._job_id, departure, reason, grace_s=grace_s)
        )
