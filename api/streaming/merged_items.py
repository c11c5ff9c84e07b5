"""The items of several jobs in one place to wait on, and the ends of their readings as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from api.protocols.shared.answer import AssembledAnswer, ending_or_error
from api.protocols.shared.completions import ChoiceItem
from api.streaming.job_stream import collect_job
from api.streaming.open_job import JobReading, OpenJob
from domain.chat.items import Failed, Finished
from domain.errors import SemanticError

#: Said of a job whose answer nobody can use, because another of the same request failed.
OTHER_FAILED = "other_answer_failed"


class MergedItems:
    """The feeds of the jobs of one request, as one.

    Args:
        jobs: In the order of their choices; nobody else reads them.
    """

    def __init__(self, jobs: Sequence[OpenJob]) -> None:
        self._feeds = [job.feed for job in jobs]
        self._open = set(range(len(jobs)))
        self._failure: SemanticError | None = None
        self._wake = asyncio.Event()
        for feed in self._feeds:
            feed.wake_with(self._wake)

    @property
    def complete(self) -> bool:
        """Whether the last item of every job has arrived, read or not."""
        return all(feed.complete for feed in self._feeds)

    async def batch(self, timeout_s: float | None) -> list[ChoiceItem]:
        """Return what came since the last call; empty when nothing came in time.

        Args:
            timeout_s: How long to wait for the first item; ``None`` is for ever.

        Raises:
            SemanticError: One of the jobs failed, or what ``Feed.batch`` raises.
            ClientGone: The client has left.
        """
        heard: list[ChoiceItem] = []
        try:
            async with asyncio.timeout(timeout_s):
                while not heard and self._failure is None:
                    for choice in self._ready():
                        heard += self._take(choice)
                    if not heard and self._failure is None:
                        await self._wake.wait()
                        self._wake.clear()
        except TimeoutError:
            return heard
        if not heard and self._failure is not None:
            raise self._failure
        return heard

    async def close(self) -> None:
        """End the subscriptions; nothing can be read afterwards."""
        await asyncio.gather(*(feed.close() for feed in self._feeds))

    def _ready(self) -> list[int]:
        return [choice for choice in sorted(self._open) if self._feeds[choice].ready]

    def _take(self, choice: int) -> list[ChoiceItem]:
        taken = self._feeds[choice].take()
        last = taken[-1].body
        if isinstance(last, Finished | Failed):
            self._open.discard(choice)
            end = ending_or_error(last)
            if isinstance(end, SemanticError):
                # The others without this one are no answer: all of it fails, once this is told.
                self._failure = end
                taken = taken[:-1]
        return [
            ChoiceItem(choice, item, is_terminal=item.is_terminal and not self._open)
            for item in taken
        ]


class JobReadings:
    """The readings of the jobs of one request, as one.

    Args:
        readings: One for each job.
    """

    def __init__(self, readings: Sequence[JobReading]) -> None:
        self._readings = readings

    def delivered(self) -> None:
        """Say that the client has all answers."""
        for reading in self._readings:
            reading.delivered()

    def abandon(self, reason: str) -> None:
        """Say that this connection is over and the answers are not delivered."""
        for reading in self._readings:
            reading.abandon(reason)


async def collect_jobs(jobs: Sequence[OpenJob]) -> list[AssembledAnswer]:
    """Return the whole answers once all have finished.

    Raises:
        GenerationCancelled: The client left, or somebody cancelled a job.
        SemanticError: What the first of them failed with; the others are given up.
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
