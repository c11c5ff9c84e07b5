"""Streams: a task in the event loop iterates the source, at the speed of the client."""

from __future__ import annotations

import asyncio
from typing import Final

from api.errors import error_body, internal_error
from api.http import sse
from api.http.messages import Closable, Dialect, StreamReply
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from domain.errors import SemanticError
from ops.observe.logs import Logger

_EVENT_STREAM: Final = "text/event-stream"


async def deliver(
    reply: StreamReply,
    exchange: Exchange,
    dialect: Dialect,
    *,
    limits: ServerLimits,
    logger: Logger,
) -> None:
    """Hand the pieces of a reply to Robyn at the speed of the client.

    Args:
        reply: Iterated once, in the event loop.
        exchange: Ended when the source has ended.
        limits: The bytes on their way, and how long the source may take to clean up.
    """
    pipe, error = exchange.pipe, None
    try:
        async for piece in reply.pieces:
            if piece:
                pipe.put(piece)
                await pipe.room(limits.stream_window_bytes)
    except SemanticError as failure:
        error = failure
    except asyncio.CancelledError:
        # The client must not take a part for a whole reply.
        exchange.cut()
    except Exception:
        logger.exception("stream_failed")
        error = internal_error()
    finally:
        if error is not None:
            _end_broken(error, reply, exchange, dialect)
        pipe.end()
        await discard(reply, limits=limits, logger=logger)
        exchange.over.set()


def _end_broken(
    error: SemanticError, reply: StreamReply, exchange: Exchange, dialect: Dialect
) -> None:
    """Send an error event, or cut a stream whose format has none."""
    if not reply.content_type.startswith(_EVENT_STREAM):
        exchange.cut()
        return
    # OpenAI's clients read unnamed events only; the others know "error".
    name = None if dialect is Dialect.OPENAI else "error"
    exchange.pipe.put(sse.frame(error_body(error, dialect, exchange.request_id), event=name))


async def discard(reply: object, *, limits: ServerLimits, logger: Logger) -> None:
    """Close a stream's source, whether it ran, ended, failed or never began."""
    if not isinstance(reply, StreamReply) or not isinstance(reply.pieces, Closable):
        return
    try:
        async with asyncio.timeout(limits.close_timeout_s):
            await reply.pieces.aclose()
    except Exception:  # a source that cannot end must not take the connection along
        logger.exception("stream_close_failed")
