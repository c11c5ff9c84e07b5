"""The sending half of a client connection."""

from __future__ import annotations

import asyncio
from typing import cast

from api.http_server.limits import ServerLimits


class ClientOutput:
    """Sends bytes to a client, and waits for clients that read slowly."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._writable = asyncio.Event()
        self._writable.set()
        #: Of the connection; ``None`` before it is made.
        self.transport: asyncio.Transport | None = None
        #: Set when the connection has ended.
        self.lost = asyncio.Event()

    def attach(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport of the connection."""
        # uvloop's transports have all the methods without being subclasses.
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)

    def pause(self) -> None:
        """Let the source of the reply wait."""
        self._writable.clear()

    def resume(self) -> None:
        """Let the source of the reply go on."""
        self._writable.set()

    def end(self) -> None:
        """Note that no byte reaches the client any more."""
        self.lost.set()
        self._writable.set()

    def write(self, data: bytes) -> None:
        """Send bytes, or buffer them until the client takes them."""
        if self.transport is not None and not self.lost.is_set():
            self.transport.write(data)

    async def drained(self) -> None:
        """Wait until the client has taken enough, at most for the stall timeout.

        Raises:
            ConnectionResetError: No byte will reach the client any more.
        """
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(self._limits.stall_timeout_s):
                    await self._writable.wait()
            except TimeoutError as error:
                message = "the client does not read"
                raise ConnectionResetError(message) from error
        if self.lost.is_set():
            message = "the client has left"
            raise ConnectionResetError(message)

    def abort(self) -> None:
        """Cut the connection."""
        if self.transport is not None:
            self.transport.abort()
