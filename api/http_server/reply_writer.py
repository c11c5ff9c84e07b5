"""Replies on the wire: heads, whole bodies, and streams piece by piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http.client import responses
from types import MappingProxyType
from typing import Final, Protocol

import h11

from api.errors import error_body, error_reply, internal_error
from api.http import sse
from api.http.messages import Closable, Dialect, Reply, Request, StreamReply
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from domain.errors import SemanticError
from ops.logs import Logger

#: Response header with what of the request has no effect, and its most characters.
WARNING_HEADER: Final = "x-semantic-warning"
WARNING_CHARS_MAX: Final = 1024
#: Response header with the trace id.
TRACE_HEADER: Final = "x-semantic-trace"
_BODILESS: Final = frozenset({204, 304})
#: Counted for each piece beside its bytes, so that many small pieces end a turn as well.
_PIECE_OVERHEAD_BYTES: Final = 256
#: Browsers neither guess the type of a reply nor give it to pages of other sites without CORS.
_BROWSER_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin"}
)
_EVENT_STREAM: Final = "text/event-stream"


class Sink(Protocol):
    """Takes the bytes for a client."""

    def write(self, data: bytes) -> None:
        """Send bytes, or buffer them until the client takes them."""

    async def drained(self) -> None:
        """Wait until the client has taken enough.

        Raises:
            ConnectionResetError: No byte will reach the client any more.
        """

    def abort(self) -> None:
        """Cut the connection, so that the client does not take a part for a whole reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyContext:
    """The request that a reply answers.

    Attributes:
        exchange: The request; its names are sent with the reply.
        dialect: The error format of the client.
        bodiless: The request was HEAD.
        close: The connection ends after this reply.
        headers: Headers for the client's browser.
    """

    exchange: Exchange
    dialect: Dialect
    bodiless: bool = False
    close: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


class ReplyWriter:
    """Writes the replies of one connection, one after the other.

    Args:
        sink: The client.
        http: The connection's protocol state.
        limits: How long an iterator may take to clean up.
        logger: Records streams that fail.
    """

    def __init__(
        self, sink: Sink, http: h11.Connection, *, limits: ServerLimits, logger: Logger
    ) -> None:
        self._sink = sink
        self._http = http
        self._limits = limits
        self._logger = logger

    async def send(self, reply: Reply | StreamReply, to: ReplyContext) -> None:
        """Send a reply; return when its last byte is written or the client has left.

        Cancelling closes the iterator of a stream.
        """
        try:
            head = _head_of(reply, to)
        except (h11.LocalProtocolError, UnicodeEncodeError):
            self._logger.exception("reply_header_unsendable")
            await self.discard(reply)
            reply = error_reply(internal_error(), to.dialect, to.exchange.request_id)
            head = _head_of(reply, to)
        bodiless = to.bodiless or reply.status in _BODILESS
        if isinstance(reply, Reply):
            self._send_whole(head, b"" if bodiless else reply.body)
            await self._sink.drained()
        elif bodiless:
            await self.discard(reply)
            self._send_whole(head, b"")
        else:
            await self._send_stream(head, reply, to)

    def _send_whole(self, head: h11.Response, body: bytes) -> None:
        data = self._http.send(head)
        if body:
            data += self._http.send(h11.Data(data=body))
        self._sink.write(data + self._http.send(h11.EndOfMessage()))

    async def _send_stream(self, head: h11.Response, reply: StreamReply, to: ReplyContext) -> None:
        # The head is sent before the first piece exists: clients time out on late heads.
        self._sink.write(self._http.send(head))
        try:
            await self._send_pieces(reply.pieces)
        except SemanticError as error:
            self._end_broken(error, reply, to)
        except ConnectionResetError:
            self._sink.abort()
        except Exception:
            self._logger.exception("stream_failed")
            self._end_broken(internal_error(), reply, to)
        finally:
            await self.discard(reply)

    async def _send_pieces(self, pieces: AsyncIterator[bytes]) -> None:
        turn_bytes = 0
        async for piece in pieces:
            if not piece:
                continue
            self._sink.write(self._http.send(h11.Data(data=piece)))
            turn_bytes += len(piece) + _PIECE_OVERHEAD_BYTES
            if turn_bytes > self._limits.turn_bytes:
                # uvloop sends, notices a full buffer and reads other clients only between two
                # turns of the loop; a source that never waits must not prevent that.
                turn_bytes = 0
                await asyncio.sleep(0)
            await self._sink.drained()
        self._sink.write(self._http.send(h11.EndOfMessage()))

    def _end_broken(self, error: SemanticError, reply: StreamReply, to: ReplyContext) -> None:
        """Send an error event, or cut a stream whose format has none."""
        if not reply.content_type.startswith(_EVENT_STREAM):
            self._sink.abort()
            return
        # OpenAI's clients read unnamed events only; the others know "error".
        name = None if to.dialect is Dialect.OPENAI else "error"
        event = sse.frame(error_body(error, to.dialect, to.exchange.request_id), event=name)
        self._sink.write(self._http.send(h11.Data(data=event)))
        self._sink.write(self._http.send(h11.EndOfMessage()))

    async def discard(self, reply: Reply | StreamReply) -> None:
        """Close a stream's source, whether it ran, ended, failed or never began."""
        if not isinstance(reply, StreamReply) or not isinstance(reply.pieces, Closable):
            return
        try:
            async with asyncio.timeout(self._limits.close_timeout_s):
                await reply.pieces.aclose()
        except Exception:  # a source that cannot end must not take the connection along
            self._logger.exception("stream_close_failed")


def warning_header(request: Request | None) -> dict[str, str]:
    """Return the header with what of a request has no effect, in printable ASCII."""
    if request is None or request.marks.warning is None:
        return {}
    return {WARNING_HEADER: ascii(request.marks.warning)[1:-1][:WARNING_CHARS_MAX]}


def _head_of(reply: Reply | StreamReply, to: ReplyContext) -> h11.Response:
    headers = {
        **_BROWSER_HEADERS,
        **{name.lower(): value for name, value in reply.headers.items()},
        **to.headers,
    }
    headers["request-id"] = to.exchange.request_id
    headers[TRACE_HEADER] = to.exchange.trace.trace_id
    headers["date"] = formatdate(usegmt=True)
    if reply.status not in _BODILESS:
        headers["content-type"] = reply.content_type
        if isinstance(reply, Reply):
            headers["content-length"] = str(len(reply.body))
    if isinstance(reply, StreamReply):
        headers.setdefault("cache-control", "no-cache")
        headers.setdefault("x-accel-buffering", "no")
    if to.close:
        headers["connection"] = "close"
    return h11.Response(
        status_code=reply.status,
        reason=responses.get(reply.status, "").encode("ascii"),
        headers=[
            (name.encode("ascii"), value.encode("latin-1")) for name, value in headers.items()
        ],
    )
