"""The receiving half of a client connection: bytes in, bounded requests out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import h11

from api.http_server import errors
from api.http_server.body_budget import BodyShare
from api.http_server.limits import ServerLimits
from api.http_server.strict_parser import request_parser

#: Bytes of a head that are kept to find the dialect of a head that cannot be parsed.
GLIMPSE_BYTES: Final = 512


class RequestReader:
    """Feeds a parser and waits, each wait with a limit.

    Args:
        limits: Sizes and times.
        resume: Called when more bytes are needed, in case the transport was paused.
    """

    def __init__(self, *, limits: ServerLimits, resume: Callable[[], None]) -> None:
        self._http = request_parser(limits.head_bytes_max)
        self._limits = limits
        self._resume = resume
        self._changed = asyncio.Event()
        #: The first bytes of the current request.
        self.glimpse = b""
        #: Whether the input has ended.
        self.over = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes received behind the current request."""
        return len(self._http.trailing_data[0])

    @property
    def awaits_continue(self) -> bool:
        """Whether the client sends its body only after a 100 (Continue)."""
        return self._http.they_are_waiting_for_100_continue

    def next_request(self) -> None:
        """Begin the next request, whose first bytes may have come already."""
        data, is_ended = self._http.trailing_data
        self._http = request_parser(self._limits.head_bytes_max)
        if data:
            self._http.receive_data(data)
        if is_ended:
            self._http.receive_data(b"")

    def feed(self, data: bytes) -> None:
        """Take bytes from the client."""
        self._http.receive_data(data)
        self._changed.set()

    def feed_end(self) -> None:
        """Take the end of the input; once."""
        self.over = True
        self._http.receive_data(b"")
        self._changed.set()

    async def first_byte(self) -> bool:
        """Wait for a request to begin; return whether one does."""
        self.glimpse = b""
        if not self.waiting_bytes and not self.over:
            try:
                async with asyncio.timeout(self._limits.idle_timeout_s):
                    await self._more()
            except TimeoutError:
                return False
        return self.waiting_bytes > 0

    async def head(self) -> h11.Request:
        """Read a request's head.

        Raises:
            BrokenFraming: It is malformed, too long or too slow.
        """
        try:
            async with asyncio.timeout(self._limits.head_timeout_s):
                event = await self._next_event()
        except TimeoutError as error:
            raise errors.head_timeout(self._limits.head_timeout_s) from error
        assert isinstance(event, h11.Request)  # noqa: S101 - h11's promise for an idle client
        return event

    async def body(self, bytes_max: int, share: BodyShare) -> bytes:
        """Read a request's body.

        Args:
            bytes_max: Its most bytes.
            share: Counts its bytes.

        Raises:
            BrokenFraming: It is malformed, too long, too slow or cut short, or the bodies of other
                requests take all the room.
        """
        pieces: list[bytes] = []
        size_bytes = 0
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                while isinstance(event := await self._next_event(), h11.Data):
                    size_bytes += len(event.data)
                    if size_bytes > bytes_max:
                        raise errors.body_too_large(bytes_max)
                    share.take(len(event.data))
                    pieces.append(bytes(event.data))
        except TimeoutError as error:
            raise errors.body_timeout(self._limits.body_timeout_s) from error
        return b"".join(pieces)

    async def end_of_input(self) -> None:
        """Wait until the input ends; the caller handles the bytes of the meantime."""
        while not self.over:
            await self._more()

    async def _next_event(self) -> h11.Event:
        while True:
            if len(self.glimpse) < GLIMPSE_BYTES:
                self.glimpse = self._http.trailing_data[0][:GLIMPSE_BYTES] or self.glimpse
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise errors.protocol_error(error) from error
            if event is h11.NEED_DATA:
                await self._more()
                continue
            # PAUSED comes between requests only, where this is not called.
            assert not isinstance(event, type)  # noqa: S101 - the sentinels are types
            return event

    async def _more(self) -> None:
        self._changed.clear()
        self._resume()
        await self._changed.wait()
