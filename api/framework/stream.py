"""Streams: a task in the event loop iterates the source, at the speed of the client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from api.errors import error_body, internal_error
from api.http import sse
from api.http.messages import Closable, Dialect, StreamReply
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from domain.errors import SemanticError
from ops.logs import Logger

_EVENT_STREAM: Final = "text/event-stream"


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

    def start(self) -> Iterator[bytes]:
        """Begin to iterate the source; return the body for Robyn."""
        task = asyncio.get_running_loop().create_task(self._run())
        self._exchange.stream(task)
        return self._exchange.pipe.open()

    async def _run(self) -> None:
        try:
            await self._deliver()
        finally:
            self._exchange.pipe.end()
            await discard(self._reply, limits=self._limits, logger=self._logger)
            self._exchange.over.set()

    async def _deliver(self) -> None:
        pipe, window_bytes = self._exchange.pipe, self._limits.stream_window_bytes
        try:
            async for piece in self._reply.pieces:
                if piece:
                    pipe.put(piece)
                    await pipe.room(window_bytes)
        except SemanticError as error:
            self._end_broken(error)
        except asyncio.CancelledError:
            # The client must not take a part for a whole reply.
            self._exchange.cut()
        except Exception:
            self._logger.exception("stream_failed")
            self._end_broken(internal_error())

    def _end_broken(self, error: SemanticError) -> None:
        """Send an error event, or cut a stream whose format has none."""
        if not self._reply.content_type.startswith(_EVENT_STREAM):
            self._exchange.cut()
            return
        # OpenAI's clients read unnamed events only; the others know "error".
        name = None if self._dialect is Dialect.OPENAI else "error"
        body = error_body(error, self._dialect, self._exchange.request_id)
        self._exchange.pipe.put(sse.frame(body, event=name))


async def discard(reply: object, *, limits: ServerLimits, logger: Logger) -> None:
    """Close a stream's source, whether it ran, ended, failed or never began."""
    if not isinstance(reply, StreamReply) or not isinstance(reply.pieces, Closable):
        return
    try:
        async with asyncio.timeout(limits.close_timeout_s):
            await reply.pieces.aclose()
    except Exception:  # a source that cannot end must not take the connection along
        logger.exception("stream_close_failed")
