"""Items of one job or of several become the answer of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Generic, Protocol, Self, TypeVar

import structlog

from api.generation import AssembledAnswer, ChoiceItem, ending_or_error
from api.http.messages import Request
from api.http.sse import Part, encode
from api.streaming.feed import ClientGone, Feed, OpenJob
from api.streaming.readers import CLIENT_GONE
from domain.chat.items import Failed, Finished, StreamItem
from domain.errors import Failure, GenerationCancelled, SemanticError
from domain.values import JobId

#: The reason of a cancellation because another job of the same request failed.
OTHER_FAILED: Final = "other_answer_failed"


@asynccontextmanager
async def abandoned_on_error(
    jobs: Sequence[OpenJob], *, refusal: str = CLIENT_GONE
) -> AsyncIterator[None]:
    """Abandon and close open jobs if the block fails, since no reply reads them then.

    Args:
        refusal: The reason of the cancellations if the block raises a ``SemanticError``.
    """
    try:
        yield
    except BaseException as error:
        for job in jobs:
            job.abandon(refusal if isinstance(error, SemanticError) else CLIENT_GONE)
            await job.close()
        raise


class MergedItems:
    """The items of the jobs of one request, as one sequence.

    Args:
        jobs: In the order of their choices; this object is their only reader.

    Attributes:
        failed: The job whose failure ``batch`` raises.
    """

    def __init__(self, jobs: Sequence[OpenJob]) -> None:
        self.failed: OpenJob | None = None
        self._jobs = jobs
        self._open = set(range(len(jobs)))
        self._failure: SemanticError | None = None
        self._wake = asyncio.Event()
        for job in jobs:
            job.wake_with(self._wake)

    @property
    def complete(self) -> bool:
        """Whether the last item of every job has arrived, read or not."""
        return all(job.complete for job in self._jobs)

    async def batch(self, timeout_s: float | None) -> list[ChoiceItem]:
        """Return the items since the last call; none if none came in time.

        Raises:
            SemanticError: One of the jobs failed, or as ``OpenJob.batch`` raises.
            ClientGone: The client has left.
        """
        items: list[ChoiceItem] = []
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    for choice in sorted(self._open):
                        if self._jobs[choice].ready:
                            items += self._take(choice)
                    if items or self._failure is not None:
                        break
                    await self._wake.wait()
                    self._wake.clear()
        except TimeoutError:
            return items
        if not items and self._failure is not None:
            raise self._failure
        return items

    def delivered(self) -> None:
        """Record that the client has all answers."""
        for job in self._jobs:
            job.delivered()

    def abandon(self, reason: str) -> None:
        """Record that the connection ended before the answers were delivered."""
        for job in self._jobs:
            job.abandon(reason)

    async def close(self) -> None:
        """End the subscriptions; nothing can be read afterwards."""
        await asyncio.gather(*(job.close() for job in self._jobs))

    def _take(self, choice: int) -> list[ChoiceItem]:
        taken = self._jobs[choice].take()
        last = taken[-1].body
        if isinstance(last, Finished | Failed):
            self._open.discard(choice)
            end = ending_or_error(last)
            if isinstance(end, SemanticError):
                # One failed choice fails the whole answer; the items taken so far go out first.
                self._failure, self.failed = end, self._jobs[choice]
                taken = taken[:-1]
        return [
            ChoiceItem(choice, item, is_terminal=item.is_terminal and not self._open)
            for item in taken
        ]


async def wait_for_end(feed: Feed, job_id: JobId, wait_s: float, request: Request) -> None:
    """Wait until a job has ended, the time is up, or the client has left.

    The job runs on in any case. Errors end the wait: the caller shows the job as it is.
    """
    with suppress(ClientGone, SemanticError, TimeoutError):
        job = await feed.open_job(job_id, request)
        job.begins_anew = True
        try:
            async with asyncio.timeout(wait_s):
                while not job.complete:
                    await job.batch(None)
        finally:
            await job.close()


async def collect_job(job: OpenJob, *, is_reply: bool = True) -> AssembledAnswer:
    """Return the whole answer of a job once it has finished; see ``collect_jobs``."""
    (answer,) = await collect_jobs([job], is_reply=is_reply)
    return answer


async def collect_jobs(jobs: Sequence[OpenJob], *, is_reply: bool = True) -> list[AssembledAnswer]:
    """Return the whole answers once all have finished.

    Args:
        jobs: Closed at the end.
        is_reply: Whether the answers are the whole reply; otherwise the caller reads more and then
            records the delivery.

    Raises:
        GenerationCancelled: The client left, or a job was cancelled.
        SemanticError: The first failure among them; the other jobs are abandoned.
    """
    items = MergedItems(jobs)
    for job in jobs:
        job.begins_anew = True
    try:
        answers = await _assemble(items, len(jobs))
        if is_reply:
            items.delivered()
    except ClientGone:
        items.abandon(CLIENT_GONE)
        raise GenerationCancelled("the client left before the answer was whole") from None
    except SemanticError as error:
        if items.failed is not None:
            items.failed.delivered()
        items.abandon(error.code if items.failed is None else OTHER_FAILED)
        raise
    except asyncio.CancelledError:
        items.abandon(CLIENT_GONE)
        raise
    finally:
        await items.close()
    return answers


async def _assemble(items: MergedItems, count: int) -> list[AssembledAnswer]:
    answers, epochs = [AssembledAnswer() for _ in range(count)], [1] * count
    while any(answer.ending is None for answer in answers):
        for one in await items.batch(None):
            if one.item.epoch > epochs[one.choice]:
                answers[one.choice], epochs[one.choice] = AssembledAnswer(), one.item.epoch
            answers[one.choice].add(one.item)
    return answers


ItemT = TypeVar("ItemT", bound=StreamItem | ChoiceItem)
ItemT_co = TypeVar("ItemT_co", bound=StreamItem | ChoiceItem, covariant=True)
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class ItemBatches(Protocol[ItemT_co]):
    """The source of a stream: ``OpenJob`` or ``MergedItems``, where the methods are described."""

    @property
    def complete(self) -> bool: ...  # noqa: D102

    async def batch(self, timeout_s: float | None) -> Sequence[ItemT_co]: ...  # noqa: D102

    def delivered(self) -> None: ...  # noqa: D102

    def abandon(self, reason: str) -> None: ...  # noqa: D102

    async def close(self) -> None: ...  # noqa: D102


class Encoder(Protocol[ItemT_contra]):
    """Turns items into the events of one protocol."""

    def open(self) -> list[Part]:
        """Return the events that precede the first item."""

    def item(self, item: ItemT_contra) -> list[Part]:
        """Return the events of an item, if it has any."""

    def ping(self) -> list[Part]:
        """Return an event that keeps a silent connection open."""

    def fail(self, error: SemanticError) -> list[Part]:
        """Return the terminal event of a stream that failed."""


class JobStream(Generic[ItemT]):
    """The pieces of a streamed answer.

    An object rather than a generator: closing a generator that was never started runs none of its
    code, so the job would run on without a reader.

    Args:
        items: The items; closed with this object.
        ping_s: Most seconds of silence.
        news: Awaited with each ping until the first item after ``Started``; may return an item
            that describes the wait.
    """

    def __init__(
        self,
        items: ItemBatches[ItemT],
        encoder: Encoder[ItemT],
        *,
        ping_s: float,
        news: Callable[[], Awaitable[ItemT | None]] | None = None,
    ) -> None:
        self._items = items
        self._encoder = encoder
        self._ping_s = ping_s
        self._news = news
        self._loop = asyncio.get_running_loop()
        self._ping_at_s = self._loop.time() + ping_s
        self._opened = False
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            if self._items.complete:
                # The caller asks for a further piece only after it has sent the last one.
                self._items.delivered()
            raise StopAsyncIteration
        if not self._opened:
            self._opened = True
            return self._piece(self._encoder.open())
        try:
            return self._piece(await self._parts())
        except ClientGone:
            await self._close(CLIENT_GONE)
            raise StopAsyncIteration from None
        except SemanticError as error:
            await self._close(error.code)
            return self._piece(self._encoder.fail(error))
        except asyncio.CancelledError:
            await self.aclose()
            raise
        except Exception:  # noqa: BLE001 - a bug must not look like a whole answer
            # The client gets a terminal event, the operator a log line.
            structlog.get_logger(__name__).exception("stream_failed")
            await self._close(Failure.code)
            return self._piece(self._encoder.fail(Failure("the stream broke off")))

    async def aclose(self) -> None:
        """End the stream; a job whose last piece was not taken is abandoned."""
        self._items.abandon(CLIENT_GONE)
        # Also where the stream is over: a cancellation may have interrupted that close.
        await self._close(None)

    async def _parts(self) -> list[Part]:
        """Wait for events to send; progress items have none, so a ping may come due."""
        while True:
            items = await self._items.batch(max(0.0, self._ping_at_s - self._loop.time()))
            if any(item.n for item in items):
                self._news = None
            parts = [part for item in items for part in self._encoder.item(item)]
            if items and items[-1].is_terminal:
                await self._close(None)
                return parts
            if parts:
                return parts
            if self._loop.time() >= self._ping_at_s:
                item = None if self._news is None else await self._news()
                parts = [] if item is None else self._encoder.item(item)
                return [*parts, *self._encoder.ping()]

    def _piece(self, parts: list[Part]) -> bytes:
        self._ping_at_s = self._loop.time() + self._ping_s
        return encode(parts)

    async def _close(self, reason: str | None) -> None:
        self._over = True
        if reason is not None:
            self._items.abandon(reason)
        await self._items.close()
