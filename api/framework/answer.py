"""Runs a handler for the request that Robyn has received; the one boundary of its failures."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from structlog.contextvars import bind_contextvars, get_contextvars

from api.errors import TransportError, dialect_of, error_body, error_reply, internal_error
from api.http import sse
from api.http.messages import Closable, Dialect, Handler, Reply, Request, StreamReply
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from api.http_server.replies import BODILESS, reply_headers
from api.http_server.shield import Shield
from domain.errors import SemanticError
from ops.observe.logs import Logger

#: Response header with what of the request has no effect, and its most characters.
WARNING_HEADER: Final = "x-semantic-warning"
WARNING_CHARS_MAX: Final = 1024
#: The part of a route's pattern that names a job.
JOB_PARAM: Final = "job_id"
#: Robyn sends other text as UTF-8, or ends the process.
_FIELD: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+: [\t -~]*")


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply for Robyn.

    Attributes:
        headers: Without those of the framing.
        body: Whole, or iterated on Robyn's threads.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes | Iterator[bytes]


class Answering:
    """Runs handlers."""

    def __init__(self, shield: Shield) -> None:
        self._shield = shield
        self._access = shield.access
        self._logger = shield.logger

    async def answer(
        self, request: Request, exchange: Exchange, handler: Handler, *, pattern: str | None
    ) -> Answer:
        """Run a handler.

        Args:
            exchange: Of the request; ended with the handler, or with the stream that it returns.
            pattern: Of its route; ``None`` for the handler of paths without one.
        """
        exchange.handling = asyncio.current_task()
        exchange.bind()
        exchange.request = request
        answer: Answer | None = None
        try:
            reply = await self._reply(request, handler, pattern)
            answer = await self._answer_with(reply, request, exchange)
        finally:
            exchange.job_id = get_contextvars().get("job_id")
            if answer is None or isinstance(answer.body, bytes):
                exchange.over.set()
        return answer

    async def _reply(
        self, request: Request, handler: Handler, pattern: str | None
    ) -> Reply | StreamReply:
        error: SemanticError
        try:
            check_content(request.headers)
            self._shield.check_serving(request.path)
            preflight = self._access.preflight(request.method, request.headers)
            if preflight is not None:
                return preflight
            if (job_id := request.params.get(JOB_PARAM)) is not None:
                bind_contextvars(job_id=job_id)
            request.marks.route = pattern
            return await handler(request)
        except SemanticError as failure:
            error = failure
        except Exception:
            self._logger.exception("handler_failed", route=pattern)
            error = internal_error()
        return self._failed(error, request)

    def _failed(self, error: SemanticError, request: Request) -> Reply:
        dialect = dialect_of(request.path, request.headers)
        return error_reply(error, dialect, request.id, jobs=request.marks.jobs)

    async def _answer_with(
        self, reply: Reply | StreamReply, request: Request, exchange: Exchange
    ) -> Answer:
        more = {**warning_header(request), **self._access.headers(request.headers)}
        headers = reply_headers(reply, exchange, more)
        if not all(_FIELD.fullmatch(f"{name}: {value}") for name, value in headers.items()):
            self._logger.error("reply_header_unsendable", route=request.marks.route)
            await self._discard(reply)
            reply = self._failed(internal_error(), request)
            headers = reply_headers(reply, exchange, self._access.headers(request.headers))
        if isinstance(reply, Reply):
            return Answer(reply.status, headers, b"" if reply.status in BODILESS else reply.body)
        if request.method == "HEAD" or reply.status in BODILESS:
            await self._discard(reply)
            return Answer(reply.status, headers, b"")
        if request.gone.is_set():
            await self._discard(reply)
            exchange.cut()
            return Answer(reply.status, headers, b"")
        dialect = dialect_of(request.path, request.headers)
        exchange.streaming = asyncio.get_running_loop().create_task(
            deliver(reply, exchange, dialect, limits=self._shield.limits, logger=self._logger)
        )
        return Answer(reply.status, headers, exchange.pipe.open())

    async def _discard(self, reply: Reply | StreamReply) -> None:
        await discard(reply, limits=self._shield.limits, logger=self._logger)


def check_content(headers: Mapping[str, str]) -> None:
    """Refuse a body with a content coding.

    Raises:
        TransportError: 415, with the accepted coding.
    """
    coding = headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        raise TransportError(
            415,
            "content_coding_not_supported",
            "send the request body without content-encoding",
            headers={"accept-encoding": "identity"},
        )


def warning_header(request: Request) -> dict[str, str]:
    """Return the header with what of a request has no effect, in printable ASCII."""
    if request.marks.warning is None:
        return {}
    return {WARNING_HEADER: ascii(request.marks.warning)[1:-1][:WARNING_CHARS_MAX]}


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
