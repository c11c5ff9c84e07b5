"""The items of several jobs of one request behind one wait, and their readings as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from api.protocols.shared.answer import AssembledAnswer, ending_or_error
from api.protocols.shared.completions import ChoiceItem
from api.streaming.job_readers import JobReading
from api.streaming.job_stream import OpenJob, collect_job
from domain.chat.items import Failed, Finished
from domain.errors import SemanticError

#: The reason of a cancellation because another job of the same request failed.
OTHER_FAILED = "other_answer_failed"


class MergedItems:
    """The items of the jobs of one request, as one sequence.

    Args:
        jobs: In the order of their choices; this object is their only reader.
    """

    def __init__(self, jobs: Sequence[OpenJob]) -> None:
        self._buffers = [job.items for job in jobs]
        self._open = set(range(len(jobs)))
        self._failure: SemanticError | None = None
        self._wake = asyncio.Event()
        for buffer in self._buffers:
            buffer.wake_with(self._wake)

    @property
    def complete(self) -> bool:
        """Whether the last item of every job has arrived, read or not."""
        return all(buffer.complete for buffer in self._buffers)

    async def batch(self, timeout_s: float | None) -> list[ChoiceItem]:
        """Return the items since the last call; none if none came in time.

        Args:
            timeout_s: How long to wait for the first item; ``None``: for ever.

        Raises:
            SemanticError: One of the jobs failed, or as ``ItemBuffer.batch`` raises.
            ClientGone: The client has left.
        """
        items: list[ChoiceItem] = []
        try:
            async with asyncio.timeout(timeout_s):
                while not items and self._failure is None:
                    for choice in self._ready():
                        items += self._take(choice)
                    if not items and self._failure is None:
                        await self._wake.wait()
                        self._wake.clear()
        except TimeoutError:
            return items
        if not items and self._failure is not None:
            raise self._failure
        return items

    async def close(self) -> None:
        """End the subscriptions; nothing can be read afterwards."""
        await asyncio.gather(*(buffer.close() for buffer in self._buffers))

    def _ready(self) -> list[int]:
        return [choice for choice in sorted(self._open) if self._buffers[choice].ready]

    def _take(self, choice: int) -> list[ChoiceItem]:
        taken = self._buffers[choice].take()
        last = taken[-1].body
        if isinstance(last, Finished | Failed):
            self._open.discard(choice)
            end = ending_or_error(last)
            if isinstance(end, SemanticError):
                # One failed choice fails the whole answer; the items taken so far go out first.
                self._failure = end
                taken = taken[:-1]
        return [
            ChoiceItem(choice, item, is_terminal=item.is_terminal and not self._open)
            for item in taken
        ]


class JobReadings:
    """The readings of the jobs of one request, as one reading.

    Args:
        readings: One for each job.
    """

    def __init__(self, readings: Sequence[JobReading]) -> None:
        self._readings = readings

    def delivered(self) -> None:
        """Record that the client has all answers."""
        for reading in self._readings:
            reading.delivered()

    def abandon(self, reason: str) -> None:
        """Record that the connection ended before the answers were delivered."""
        for reading in self._readings:
            reading.abandon(reason)


async def collect_jobs(jobs: Sequence[OpenJob]) -> list[AssembledAnswer]:
    """Return the whole answers once all have finished.

    Raises:
        GenerationCancelled: The client left, or a job was cancelled.
        SemanticError: The first failure among them; the other jobs are abandoned.
    """
    collecting = [asyncio.ensure_future(collect_job(job)) for job in jobs]
    try:
        await asyncio.wait(collecting, return_when=asyncio.FIRST_EXCEPTION)
        failed = next((one for one in collecting if one.done() and one.exception()), None)
        if failed is not None:
            for job in jobs:
                job.reading.abandon(OTHER_FAILED)
            failed.result()
        return [one.result() for one in collecting]
    finally:
        for one in collecting:
            one.cancel()
        await asyncio.gather(*collecting, return_exceptions=True)
