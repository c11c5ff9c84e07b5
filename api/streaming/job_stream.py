"""Drives a followed job into an answer: piece by piece, or whole."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, Self, TypeVar

import structlog

from api.http.sse import Part, encode
from api.protocols.shared.answer import AssembledAnswer, ending_or_error
from api.streaming.item_buffer import ClientGone
from api.streaming.open_job import OpenJob
from domain.errors import Failure, GenerationCancelled, SemanticError


class StreamedItem(Protocol):
    """What a stream is made of: an item, or an item with the place of its job."""

    @property
    def n(self) -> int | None:
        """Its number in the stream of its job, ``None`` for what is only told while it happens."""
        ...

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        ...


HeardT = TypeVar("HeardT", bound=StreamedItem)
ToldT_contra = TypeVar("ToldT_contra", contravariant=True)
HeardT_co = TypeVar("HeardT_co", bound=StreamedItem, covariant=True)


class ItemFeed(Protocol[HeardT_co]):
    """Where a stream comes from: ``Feed``, or ``JointFeed``."""

    @property
    def complete(self) -> bool:
        """Whether the last item has arrived, read or not."""
        ...

    async def batch(self, timeout_s: float | None) -> Sequence[HeardT_co]:
        """Return what came since the last call; empty when nothing came in time."""
        ...

    async def close(self) -> None:
        """End the subscription; nothing can be read afterwards."""
        ...


class ReadingObserver(Protocol):
    """Told once how a reading ended: ``Reading``, or ``Readings``."""

    def delivered(self) -> None:
        """Say that the client has the whole answer."""
        ...

    def abandon(self, reason: str) -> None:
        """Say that this connection is over and the answer is not delivered."""
        ...


class Encoder(Protocol[ToldT_contra]):
    """From items to the events of one protocol."""

    def open(self) -> list[Part]:
        """Return what goes out at once."""
        ...

    def item(self, item: ToldT_contra) -> list[Part]:
        """Return what an item calls for; may be nothing."""
        ...

    def ping(self) -> list[Part]:
        """Return a sign of life."""
        ...

    def fail(self, error: SemanticError) -> list[Part]:
        """Return the terminal event of a stream that cannot be finished."""
        ...


async def collect_job(job: OpenJob) -> AssembledAnswer:
    """Return the whole answer once it has finished.

    Raises:
        GenerationCancelled: The client left, or somebody cancelled the job.
        SemanticError: Whatever the job failed with.
    """
    answer = AssembledAnswer()
    try:
        while answer.ending is None:
            for item in await job.feed.batch(None):
                answer.add(item)
        job.reading.delivered()
    except ClientGone:
        msg = "the client left before the answer was whole"
        raise GenerationCancelled(msg) from None
    except SemanticError as error:
        job.reading.abandon(error.code)
        raise
    except asyncio.CancelledError:
        job.reading.abandon("client_gone")
        raise
    finally:
        await job.feed.close()
    end = ending_or_error(answer.ending)
    if isinstance(end, SemanticError):
        raise end
    return answer


class JobStream(Generic[HeardT]):
    """The pieces of a streamed answer.

    An object rather than a generator, because closing a generator that was never started runs
    none of its code, and the job would go on for nobody.

    Args:
        feed: The items; closed with this object.
        encoder: The protocol.
        ping_s: Most seconds of silence.
        reading: Told how this reading ended; ``None`` lets the job go on without a reader.
        news: Asked with each ping, until the job speaks, for something to say of its wait.
    """

    def __init__(
        self,
        feed: ItemFeed[HeardT],
        encoder: Encoder[HeardT],
        *,
        ping_s: float,
        reading: ReadingObserver | None = None,
        news: Callable[[], Awaitable[HeardT | None]] | None = None,
    ) -> None:
        self._feed = feed
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
            if self._reading is not None and self._feed.complete:
                # Whoever asks for more has the last piece.
                self._reading.delivered()
            raise StopAsyncIteration
        if not self._opened:
            self._opened = True
            return self._piece(self._encoder.open())
        try:
            return self._piece(await self._parts())
        except ClientGone:
            await self._close("client_gone")
            raise StopAsyncIteration from None
        except SemanticError as error:
            await self._close(error.code)
            return self._piece(self._encoder.fail(error))
        except asyncio.CancelledError:
            await self.aclose()
            raise
        except Exception:  # noqa: BLE001 - a bug must not look like a whole answer
            # The client learns of it by a terminal event, the operator by the log.
            structlog.get_logger(__name__).exception("stream_failed")
            await self._close(Failure.code)
            return self._piece(self._encoder.fail(Failure("the stream broke off")))

    async def aclose(self) -> None:
        """End the stream; a job whose last word was not taken is abandoned."""
        if self._reading is not None:
            self._reading.abandon("client_gone")
        if not self._over:
            await self._close(None)

    async def _parts(self) -> list[Part]:
        """Wait for something to say; progress alone says nothing, so a ping may come due."""
        while True:
            items = await self._feed.batch(max(0.0, self._ping_at_s - self._loop.time()))
            if any(item.n is not None for item in items):
                self._news = None
            parts = [part for item in items for part in self._encoder.item(item)]
            if items and items[-1].is_terminal:
                await self._close(None)
                return parts
            if parts:
                return parts
            if self._loop.time() >= self._ping_at_s:
                item = None if self._news is None else await self._news()
                told = [] if item is None else self._encoder.item(item)
                return [*told, *self._encoder.ping()]

    def _piece(self, parts: list[Part]) -> bytes:
        self._ping_at_s = self._loop.time() + self._ping_s
        return encode(parts)

    async def _close(self, reason: str | None) -> None:
        self._over = True
        if reason is not None and self._reading is not None:
            self._reading.abandon(reason)
        await self._feed.close()
