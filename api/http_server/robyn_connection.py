"""The connection to Robyn that belongs to one client: a request goes over, a reply comes back.

Robyn runs in this process and frames its replies in two ways only, by length or in chunks, so a
few lines find their ends; bytes of clients are parsed by h11. Anything else ends the connection.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final, Protocol, cast

from api.http_server.reply_head import BODILESS, REQUEST_ID_HEADER

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) ")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]{1,12})(?=\r\n)")
_CHUNKED: Final = re.compile(rb"\r\ntransfer-encoding: chunked(?=\r\n)")
_OURS: Final = b"\r\n%s: " % REQUEST_ID_HEADER.encode()
#: Most bytes of the head of a reply.
HEAD_BYTES_MAX: Final = 65_536
_END_OF_HEAD: Final = b"\r\n\r\n"
_LINE_END: Final = 2


class ReplyTaker(Protocol):
    """The client's connection, as the connection to Robyn sees it."""

    def take_head(self, head: bytes, *, is_chunked: bool) -> None:
        """Send the head of a reply, with its empty line."""

    def take_body(self, data: bytes, payload: list[bytes]) -> None:
        """Send bytes of a body.

        Args:
            data: The bytes as Robyn framed them.
            payload: The same without the framing.
        """


class BrokenReply(ConnectionError):
    """Robyn has ended the connection, or has sent something that is no reply of a handler."""


class RobynConnection(asyncio.Protocol):
    """A connection over which one request goes at a time.

    Args:
        taker: Gets the replies.
    """

    def __init__(self, taker: ReplyTaker) -> None:
        self._taker = taker
        self._transport: asyncio.Transport | None = None
        self._reply: asyncio.Future[int] | None = None
        self._head = b""
        self._body: _WholeBody | _ChunkedBody | None = None
        self._status = 0
        self._is_bodiless = False

    @property
    def is_open(self) -> bool:
        """Whether a further request may go over it."""
        return self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, *, is_head: bool) -> int:
        """Send a request; return the status once the whole reply is passed on.

        Args:
            request: Head and body.
            is_head: The reply has no body whatever its head announces.

        Raises:
            BrokenReply: No reply came, or a part of one; then its head may have been passed on.
        """
        if self._transport is None or self._transport.is_closing():
            raise BrokenReply
        self._head, self._body, self._is_bodiless = b"", None, is_head
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    def abort(self) -> None:
        """Cut the connection, so that Robyn drops what it still has to send."""
        if self._transport is not None:
            self._transport.abort()

    def pause(self) -> None:
        """Take no further bytes of the reply."""
        if self.is_open and self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Go on to take bytes of the reply."""
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        # uvloop's transports have all the methods without being subclasses.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Pass bytes of the reply on."""
        if self._reply is None:
            self.abort()
            return
        if self._body is None:
            data = self._take_head(data)
        if self._body is not None:
            self._take_body(self._body, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the reply that is not whole."""
        del exc
        self._end(BrokenReply())

    def _take_head(self, data: bytes) -> bytes:
        """Collect the head; return what follows it."""
        self._head += data
        head, end_of_head, rest = self._head.partition(_END_OF_HEAD)
        if not end_of_head:
            if len(self._head) > HEAD_BYTES_MAX:
                self._fail()
            return b""
        head += end_of_head
        status, length = _STATUS_LINE.match(head), _LENGTH.search(head)
        if status is None or _OURS not in head:
            self._fail()
            return b""
        self._status = int(status[1])
        is_chunked = _CHUNKED.search(head) is not None
        if self._is_bodiless or self._status in BODILESS:
            self._body = _WholeBody(0)
        else:
            self._body = (
                _ChunkedBody() if is_chunked else _WholeBody(int(length[1] if length else 0))
            )
        self._taker.take_head(head, is_chunked=is_chunked)
        return rest

    def _take_body(self, body: _WholeBody | _ChunkedBody, data: bytes) -> None:
        try:
            payload = body.feed(data)
        except ValueError:
            self._fail()
            return
        if data:
            self._taker.take_body(data, payload)
        if body.is_over:
            self._end(None)

    def _fail(self) -> None:
        self._end(BrokenReply())
        self.abort()

    def _end(self, error: BrokenReply | None) -> None:
        reply, self._reply = self._reply, None
        if reply is None or reply.done():
            return
        if error is None:
            reply.set_result(self._status)
        else:
            reply.set_exception(error)


class _WholeBody:
    """A body of known length."""

    def __init__(self, length_bytes: int) -> None:
        self._left_bytes = length_bytes

    @property
    def is_over(self) -> bool:
        return not self._left_bytes

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payload; raises ``ValueError`` for bytes behind the end."""
        self._left_bytes -= len(data)
        if self._left_bytes < 0:
            raise ValueError
        return [data]


class _ChunkedBody:
    """A body in chunks, without extensions and trailers, which Robyn does not send."""

    def __init__(self) -> None:
        self._line = b""
        #: Of the current chunk, with the line end behind it.
        self._left_bytes = 0
        self._is_last = False
        self.is_over = False

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payload; raises ``ValueError`` for anything else than chunks."""
        payload = []
        at = 0
        while at < len(data):
            if self.is_over:
                raise ValueError
            if not self._left_bytes:
                at = self._read_size(data, at)
                continue
            taken_bytes = min(self._left_bytes, len(data) - at)
            if (payload_bytes := min(taken_bytes, self._left_bytes - _LINE_END)) > 0:
                payload.append(data[at : at + payload_bytes])
            self._left_bytes -= taken_bytes
            at += taken_bytes
            self.is_over = self._is_last and not self._left_bytes
        return payload

    def _read_size(self, data: bytes, at: int) -> int:
        end = data.find(b"\n", at)
        if end < 0:
            self._line += data[at:]
            return len(data)
        size_bytes = int(self._line + data[at:end], 16)
        self._line = b""
        self._is_last = not size_bytes
        self._left_bytes = size_bytes + _LINE_END
        return end + 1
