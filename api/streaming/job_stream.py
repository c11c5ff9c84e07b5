"""Items of one job or of several become the answer of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import structlog

from api.http.messages import Request
from api.http.sse import Part, encode
from api.protocols.shared.answer import AssembledAnswer, ending_or_error
from api.protocols.shared.completions import ChoiceItem
from api.streaming.item_buffer import ClientGone, ItemBuffer
from api.streaming.job_readers import CLIENT_GONE, JobReading
from domain.chat.items import Failed, Finished, StreamItem
from domain.errors import Failure, GenerationCancelled, SemanticError
from domain.values import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenJob:
    """A job whose items one connection reads from the first on.

    Attributes:
        reading: The connection as a reader of the job.
        attached: Why the request joined an earlier job, if it did.
    """

    id: JobId
    items: ItemBuffer
    reading: JobReading
    attached: str | None = None


def open_job(
    job_id: JobId,
    items: AsyncIterator[StreamItem],
    reading: JobReading,
    request: Request,
    *,
    attached: str | None = None,
) -> OpenJob:
    """Return a job whose reader abandons it when the client of ``request`` leaves."""
    buffer = ItemBuffer(items, request, on_gone=lambda: reading.abandon(CLIENT_GONE))
    return OpenJob(id=job_id, items=buffer, reading=reading, attached=attached)


@asynccontextmanager
async def abandoned_on_error(
    jobs: Sequence[OpenJob], *, refusal: str = CLIENT_GONE
) -> AsyncIterator[None]:
    """Abandon and close open jobs if the block fails, since no reply reads them then.

    Args:
        jobs: The jobs that the block makes a reply of.
        refusal: The reason of the cancellations if the block raises a ``SemanticError``.
    """
    try:
        yield
    except BaseException as error:
        reason = refusal if isinstance(error, SemanticError) else CLIENT_GONE
        for job in jobs:
            job.reading.abandon(reason)
            await job.items.close()
        raise


class StreamedItem(Protocol):
    """An item, or an item with the place of its job."""

    @property
    def n(self) -> int | None:
        """Its number in the stream of its job, ``None`` for a transient item."""
        ...

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        ...


ItemT = TypeVar("ItemT", bound=StreamedItem)
ItemT_co = TypeVar("ItemT_co", bound=StreamedItem, covariant=True)
ItemT_contra = TypeVar("ItemT_contra", contravariant=True)


class ItemBatches(Protocol[ItemT_co]):
    """The source of a stream: ``ItemBuffer`` or ``MergedItems``."""

    @property
    def complete(self) -> bool:
        """Whether the last item has arrived, read or not."""
        ...

    async def batch(self, timeout_s: float | None) -> Sequence[ItemT_co]:
        """Return the items since the last call; none if none came in time."""
        ...

    async def close(self) -> None:
        """End the subscription; nothing can be read afterwards."""
        ...


class ReadingObserver(Protocol):
    """A connection as a reader of its jobs: ``JobReading`` or ``JobReadings``."""

    def delivered(self) -> None:
        """Record that the client has the whole answer."""
        ...

    def abandon(self, reason: str) -> None:
        """Record that the connection ended before the answer was delivered."""
        ...


class Encoder(Protocol[ItemT_contra]):
    """Turns items into the events of one protocol."""

    def open(self) -> list[Part]:
        """Return the events that precede the first item."""
        ...

    def item(self, item: ItemT_contra) -> list[Part]:
        """Return the events of an item, if it has any."""
        ...

    def ping(self) -> list[Part]:
        """Return an event that keeps a silent connection open."""
        ...

    def fail(self, error: SemanticError) -> list[Part]:
        """Return the terminal event of a stream that failed."""
        ...


async def collect_job(job: OpenJob, *, is_reply: bool = True) -> AssembledAnswer:
    """Return the whole answer once it has finished.

    Args:
        is_reply: Whether the answer is the whole reply; otherwise the caller reads more and then
            records the delivery.

    Raises:
        GenerationCancelled: The client left, or the job was cancelled.
        SemanticError: The failure of the job.
    """
    answer, epoch = AssembledAnswer(), 1
    job.items.begins_anew = True
    try:
        while answer.ending is None:
            for item in await job.items.batch(None):
                if item.epoch > epoch:
                    answer, epoch = AssembledAnswer(), item.epoch
                answer.add(item)
        end = ending_or_error(answer.ending)
        if is_reply or isinstance(end, SemanticError):
            job.reading.delivered()
    except ClientGone:
        msg = "the client left before the answer was whole"
        raise GenerationCancelled(msg) from None
    except SemanticError as error:
        job.reading.abandon(error.code)
        raise
    except asyncio.CancelledError:
        job.reading.abandon(CLIENT_GONE)
        raise
    finally:
        await job.items.close()
    if isinstance(end, SemanticError):
        raise end
    return answer


class JobStream(Generic[ItemT]):
    """The pieces of a streamed answer.

    An object rather than a generator: closing a generator that was never started runs none of its
    code, so the job would run on without a reader.

    Args:
        items: The items; closed with this object.
        encoder: The protocol.
        ping_s: Most seconds of silence.
        reading: Records how this connection ended; ``None`` for a job that runs on without it.
        news: Awaited with each ping until the first item after ``Started``; may return an item
            that describes the wait.
    """

    def __init__(
        self,
        items: ItemBatches[ItemT],
        encoder: Encoder[ItemT],
        *,
        ping_s: float,
        reading: ReadingObserver | None = None,
        news: Callable[[], Awaitable[ItemT | None]] | None = None,
    ) -> None:
        self._items = items
        self._encoder = encoder
        self._ping_s = ping_s
        self._reading = reading
        self._news = news
        self._loop = asyncio.get_running_loop()
        self._ping_at_s = self._loop.time() + ping_s
        self._opened = False
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            if self._reading is not None and self._items.complete:
                # The caller asks for a further piece only after it has sent the last one.
                self._reading.delivered()
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
        if self._reading is not None:
            self._reading.abandon(CLIENT_GONE)
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
        if reason is not None and self._reading is not None:
            self._reading.abandon(reason)
        await self._items.close()


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
