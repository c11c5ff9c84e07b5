"""Who waits for the answer of a job on a connection of this process.

Belongs to one event loop. What is kept here is a memory of connections and nothing else: lost with
the process, after which every job's readership is unknown.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from domain.job.request_dedup import Readership
from domain.values import JobId

#: Jobs whose readership is remembered; of older ones it is unknown.
JOBS_MAX: Final = 10_000


@dataclass(slots=True)
class _Reading:
    state: Readership
    connections: int = 0
    #: How often the job was left by its last reader.
    departures: int = 0


class ConnectionRegistry:
    """Counts the connections of each job.

    Args:
        jobs_max: Jobs that are remembered.
    """

    def __init__(self, *, jobs_max: int = JOBS_MAX) -> None:
        self._jobs_max = jobs_max
        self._jobs: OrderedDict[JobId, _Reading] = OrderedDict()
        self._departed: set[asyncio.Event] = set()

    def state(self, job_id: JobId) -> Readership:
        """Return what is known of those who wait for a job."""
        found = self._jobs.get(job_id)
        return Readership.UNKNOWN if found is None else found.state

    def begin(self, job_id: JobId) -> None:
        """Note a connection that waits for the answer; a job that was lost has a reader again."""
        reading = self._jobs.setdefault(job_id, _Reading(Readership.READING))
        self._jobs.move_to_end(job_id)
        reading.state = Readership.READING
        reading.connections += 1
        while len(self._jobs) > self._jobs_max:
            self._jobs.popitem(last=False)

    def end(self, job_id: JobId, *, delivered: bool) -> int | None:
        """Note that a connection is over.

        Args:
            job_id: The job.
            delivered: Whether the client got the whole answer.

        Returns:
            A number for ``give_up`` if this was the last reader and the answer is not delivered.
        """
        reading = self._jobs.get(job_id)
        if reading is None:
            # Too many jobs came since: nobody can say who reads it.
            return None if delivered else 0
        reading.connections -= 1
        if reading.connections > 0:
            return None
        reading.state = Readership.DELIVERED if delivered else Readership.LOST
        reading.departures += 1
        for event in self._departed:
            event.set()
        return None if delivered else reading.departures

    def give_up(self, job_id: JobId, departure: int) -> bool:
        """Let nobody join a lost job any more.

        Args:
            job_id: The job.
            departure: From ``end``.

        Returns:
            Whether it is still lost by that departure; ``False`` if somebody joined meanwhile.
        """
        reading = self._jobs.get(job_id)
        if reading is None:
            return True
        if reading.state is not Readership.LOST or reading.departures != departure:
            return False
        reading.state = Readership.GIVEN_UP
        return True

    async def wait_for_departure(self, timeout_s: float) -> None:
        """Wait until some job is left by its last reader, or until the time is up."""
        departed = asyncio.Event()
        self._departed.add(departed)
        try:
            async with asyncio.timeout(timeout_s):
                await departed.wait()
        except TimeoutError:
            return
        finally:
            self._departed.discard(departed)
