"""Replies: their header fields, those of the shield itself, and those that come from Robyn."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable, Mapping
from email.utils import formatdate
from http.client import responses
from types import MappingProxyType
from typing import Final, cast

from api.http.messages import Reply, StreamReply
from api.http_server.exchange import Exchange

#: Response header with the trace id.
TRACE_HEADER: Final = "x-semantic-trace"
#: Response header with the id of the request; a reply without it is Robyn's own.
REQUEST_ID_HEADER: Final = "request-id"
#: Statuses of replies without a body.
BODILESS: Final = frozenset({204, 304})
#: In the head of a stream.
CHUNKED: Final = b"\r\ntransfer-encoding: chunked\r\n"
#: Most bytes of the head of a reply.
HEAD_BYTES_MAX: Final = 65_536
#: Browsers neither guess the type of a reply nor give it to pages of other sites without CORS.
_BROWSER_HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {"x-content-type-options": "nosniff", "cross-origin-resource-policy": "same-origin"}
)
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) ")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]{1,12})(?=\r\n)")
_OURS: Final = b"\r\n%s: " % REQUEST_ID_HEADER.encode()
_END_OF_HEAD: Final = b"\r\n\r\n"


def reply_headers(
    reply: Reply | StreamReply, exchange: Exchange, more: Mapping[str, str]
) -> dict[str, str]:
    """Return the header fields of a reply by lower-case name, without those of its framing.

    Args:
        reply: Its own fields win over those for browsers.
        more: Fields for the client's browser, which win over those of the reply.
    """
    headers = {
        **_BROWSER_HEADERS,
        **{name.lower(): value for name, value in reply.headers.items()},
        **more,
        REQUEST_ID_HEADER: exchange.request_id,
        TRACE_HEADER: exchange.trace.trace_id,
    }
    if reply.status not in BODILESS:
        headers["content-type"] = reply.content_type
    return headers


def whole_reply(reply: Reply, headers: dict[str, str], *, bodiless: bool, close: bool) -> bytes:
    """Return the bytes of a reply that does not come from Robyn.

    Args:
        reply: Without header fields of a client's choice.
        bodiless: The request was HEAD.
        close: The connection ends after this reply.
    """
    headers["date"] = formatdate(usegmt=True)
    if reply.status not in BODILESS:
        headers["content-length"] = str(len(reply.body))
    if close:
        headers["connection"] = "close"
    lines = [f"HTTP/1.1 {reply.status} {responses.get(reply.status, '')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head if bodiless else head + reply.body


class BrokenReply(ConnectionError):
    """Robyn has ended the connection, or has sent something that is no reply of a handler."""


class RobynConnection(asyncio.Protocol):
    """A connection over which one request goes at a time.

    Robyn runs in this process and frames its replies in two ways only, by length and in a chunk for
    each piece, so their end follows from the number of bytes.

    Args:
        on_head: Gets the head of each reply, with its empty line.
        on_body: Gets bytes of its body as Robyn framed them, and the piece of a stream that is
            whole with them, ``None`` for other bodies.
    """

    def __init__(
        self, on_head: Callable[[bytes], None], on_body: Callable[[bytes, bytes | None], None]
    ) -> None:
        self._on_head = on_head
        self._on_body = on_body
        self._transport: asyncio.Transport | None = None
        self._unsent: deque[bytes | bytearray] = deque()
        self._is_full = False
        self._exchange: Exchange | None = None
        self._reply: asyncio.Future[int] | None = None
        self._head = b""
        self._is_bodiless = False
        self._status = 0
        #: Bytes of the body that have not come; ``None`` for a stream.
        self._left_bytes: int | None = 0

    @property
    def is_open(self) -> bool:
        """Whether a further request may go over it."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, exchange: Exchange, *, is_head: bool) -> int:
        """Send a request; return the status once the whole reply is passed on.

        Args:
            exchange: Has head and body for Robyn, which are dropped while it takes them, and the
                stream of the reply.
            is_head: The reply has no body whatever its head announces.

        Raises:
            BrokenReply: No reply came, or a part of one; then its head may have been passed on.
        """
        if not self.is_open:
            raise BrokenReply
        self._head, self._status, self._is_bodiless = b"", 0, is_head
        self._exchange, self._unsent = exchange, exchange.body
        self._reply = asyncio.get_running_loop().create_future()
        self._push()
        return await self._reply

    def abort(self) -> None:
        """Cut the connection, so that Robyn drops what it still has to send."""
        self._unsent.clear()
        if self._transport is not None:
            self._transport.abort()

    def pause(self, *, is_paused: bool) -> None:
        """Take further bytes of the reply, or none."""
        if self.is_open and self._transport is not None:
            (self._transport.pause_reading if is_paused else self._transport.resume_reading)()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        # uvloop's transports have all the methods without being subclasses.
        self._transport = cast("asyncio.Transport", transport)

    def pause_writing(self) -> None:
        """Keep the rest of the request."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Go on to send the request.

        Not at once: uvloop calls this while it sends what was written before, and keeps what is
        written in the call until anything else happens.
        """
        self._is_full = False
        asyncio.get_running_loop().call_soon(self._push)

    def data_received(self, data: bytes) -> None:
        """Pass bytes of the reply on."""
        if self._reply is None or self._exchange is None:
            self.abort()
            return
        try:
            self._take(data, self._exchange)
        except ValueError:
            self._end(BrokenReply())
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the reply that is not whole."""
        del exc
        self._end(BrokenReply())

    def _push(self) -> None:
        while self._unsent and not self._is_full and self._transport is not None:
            self._transport.write(self._unsent.popleft())

    def _take(self, data: bytes, exchange: Exchange) -> None:
        """Take bytes of a head or a body.

        Raises:
            ValueError: They are not those of a reply of a handler.
        """
        if not self._status:
            data = self._take_head(data)
            if not self._status:
                return
        if self._left_bytes is not None:
            self._left_bytes -= len(data)
            if self._left_bytes < 0:
                raise ValueError
        if data:
            is_whole = self._left_bytes is not None
            self._on_body(data, None if is_whole else exchange.pipe.passed(len(data)))
        if self._left_bytes == 0 or (self._left_bytes is None and exchange.pipe.is_over):
            self._end(None)

    def _take_head(self, data: bytes) -> bytes:
        """Collect the head; return what follows it."""
        self._head += data
        head, end_of_head, rest = self._head.partition(_END_OF_HEAD)
        if not end_of_head:
            if len(self._head) > HEAD_BYTES_MAX:
                raise ValueError
            return b""
        head += end_of_head
        status, length = _STATUS_LINE.match(head), _LENGTH.search(head)
        if status is None or _OURS not in head:
            raise ValueError
        self._status = int(status[1])
        self._left_bytes = int(length[1]) if length else 0
        if self._is_bodiless or self._status in BODILESS:
            self._left_bytes = 0
        elif CHUNKED in head:
            self._left_bytes = None
        self._on_head(head)
        return rest

    def _end(self, error: BrokenReply | None) -> None:
        reply, self._reply = self._reply, None
        self._exchange = None
        if reply is None or reply.done():
            return
        if error is None:
            reply.set_result(self._status)
        else:
            reply.set_exception(error)
