"""Streams: a task in the event loop iterates the source, Robyn's threads take its bytes.

Robyn calls ``__next__`` of a body on one of its threads, which waits there. The source belongs to
the event loop. Between them stands a queue; how much is in it is bounded by what the shield has
passed on to the client, which the event loop knows without a word from the thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Final, Self

from api.errors import error_body, internal_error
from api.http import sse
from api.http.messages import Closable, Dialect, StreamReply
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from domain.errors import SemanticError
from ops.logs import Logger

#: How long a thread waits for a silent source before it gives another stream its turn. There is a
#: thread for each connection, but Robyn may spread connections unevenly.
TURN_S: Final = 2.0
_EVENT_STREAM: Final = "text/event-stream"


class StreamBody(Iterator[bytes]):
    """The body that Robyn iterates; ``put`` and ``end`` are called in the event loop."""

    def __init__(self) -> None:
        self._pieces: SimpleQueue[bytes | None] = SimpleQueue()
        self._is_over = False

    def put(self, piece: bytes) -> None:
        """Add bytes."""
        self._pieces.put(piece)

    def end(self) -> None:
        """Add the end."""
        self._pieces.put(None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """Return all bytes that have come, none after ``TURN_S`` without any."""
        if self._is_over:
            raise StopIteration
        try:
            piece = self._pieces.get(timeout=TURN_S)
        except Empty:
            return b""
        pieces = []
        while piece is not None:
            pieces.append(piece)
            if self._pieces.empty():
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
            piece = self._pieces.get()
        self._is_over = True
        if not pieces:
            raise StopIteration
        return b"".join(pieces)


class StreamDelivery:
    """Hands the pieces of a reply to Robyn at the speed of the client.

    Args:
        reply: Iterated once, in the event loop.
        exchange: Ended when the source has ended.
        dialect: The error format of the client.
        limits: The bytes on their way, and how long the source may take to clean up.
        logger: Records streams that fail.
    """

    def __init__(
        self,
        reply: StreamReply,
        exchange: Exchange,
        *,
        dialect: Dialect,
        limits: ServerLimits,
        logger: Logger,
    ) -> None:
        self._reply = reply
        self._exchange = exchange
        self._dialect = dialect
        self._limits = limits
        self._logger = logger
        self.body = StreamBody()

    def start(self) -> StreamBody:
        """Begin to iterate the source; return the body for Robyn."""
        task = asyncio.get_running_loop().create_task(self._run())
        self._exchange.stream(task)
        return self.body

    async def _run(self) -> None:
        try:
            await self._deliver()
        finally:
            self.body.end()
            await discard(self._reply, limits=self._limits, logger=self._logger)
            self._exchange.end()

    async def _deliver(self) -> None:
        try:
            async for piece in self._reply.pieces:
                if piece:
                    self._put(piece)
                    await self._exchange.room(self._limits.stream_window_bytes)
        except SemanticError as error:
            self._end_broken(error)
        except asyncio.CancelledError:
            # The client must not take a part for a whole reply.
            self._exchange.cut()
        except Exception:
            self._logger.exception("stream_failed")
            self._end_broken(internal_error())

    def _put(self, piece: bytes) -> None:
        self._exchange.put(len(piece))
        self.body.put(piece)

    def _end_broken(self, error: SemanticError) -> None:
        """Send an error event, or cut a stream whose format has none."""
        if not self._reply.content_type.startswith(_EVENT_STREAM):
            self._exchange.cut()
            return
        # OpenAI's clients read unnamed events only; the others know "error".
        name = None if self._dialect is Dialect.OPENAI else "error"
        body = error_body(error, self._dialect, self._exchange.request_id)
        self._put(sse.frame(body, event=name))


async def discard(reply: object, *, limits: ServerLimits, logger: Logger) -> None:
    """Close a stream's source, whether it ran, ended, failed or never began."""
    if not isinstance(reply, StreamReply) or not isinstance(reply.pieces, Closable):
        return
    try:
        async with asyncio.timeout(limits.close_timeout_s):
            await reply.pieces.aclose()
    except Exception:  # a source that cannot end must not take the connection along
        logger.exception("stream_close_failed")
