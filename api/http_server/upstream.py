"""The gate's way to the framework: kept loopback connections that carry heads and no bodies.

The framework only has to route: the handler it calls finds request and body in the exchange and
puts its answer there. So what goes over is a request line of unreserved bytes and two headers of
ours, and what comes back is an empty answer that says "done".
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import Final, cast

from api.http_server.errors import internal_error
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from domain.errors import Unavailable
from ops.logs import Logger

EXCHANGE_HEADER: Final = "x-semantic-exchange"
SECRET_HEADER: Final = "x-semantic-gate"  # noqa: S105 - the name of the header, not its value
#: The framework is our own process and says little: a status, perhaps with a sentence. So these two
#: expressions read it, and whatever they do not understand closes the line. The public side, where
#: strangers write, is parsed by h11.
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) ")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]{1,5})(?:\r\n|$)", re.IGNORECASE)
#: An answer of the framework is a few short headers and at most a sentence.
ANSWER_BYTES_MAX: Final = 16_384

_UNREACHABLE: Final = "the service is starting or stopping"
#: What the framework answers where no route matches path and method.
_UNROUTED: Final = frozenset({404, 405})
#: Methods that routes can have; the framework need not be asked about others.
ROUTED_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})


class Upstream:
    """Bounded by its callers: one exchange per client connection, one connection per exchange.

    Args:
        host: Loopback address of the framework.
        port: Its port.
        secret: Shows the framework that the request comes from the gate.
        limits: Connect timeout, and how many idle connections to keep.
        logger: Told of answers that make no sense.
    """

    def __init__(
        self, host: str, port: int, *, secret: str, limits: ServerLimits, logger: Logger
    ) -> None:
        self._address = (host, port)
        self._secret = secret
        self._limits = limits
        self._logger = logger
        self._idle: deque[_Line] = deque()

    async def dispatch(self, exchange: Exchange) -> None:
        """Have a request routed; the answer arrives in the exchange.

        Raises:
            Unavailable: The framework cannot be reached.
        """
        method = "GET" if exchange.request.method == "HEAD" else exchange.request.method
        if method not in ROUTED_METHODS:
            exchange.answer(None)
            return
        line = self._idle.pop() if self._idle else await self._connect()
        head = (
            f"{method} {exchange.route_path} HTTP/1.1\r\n"
            f"host: gate\r\n"
            f"{EXCHANGE_HEADER}: {exchange.request.id}\r\n"
            f"{SECRET_HEADER}: {self._secret}\r\n\r\n"
        )
        line.send(head.encode("ascii"), exchange)

    async def _connect(self) -> _Line:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.upstream_connect_timeout_s):
                _, line = await loop.create_connection(lambda: _Line(self), *self._address)
        except (OSError, TimeoutError) as error:
            raise Unavailable(_UNREACHABLE) from error
        return line

    def settle(self, exchange: Exchange, status: int) -> None:
        """Take the framework's word that an exchange is done."""
        if status in _UNROUTED:
            exchange.answer(None)
        elif not exchange.claimed:
            # Refused, or failed before it came to our handler.
            self._logger.error("framework_refused", status=status, path=exchange.route_path)
            exchange.fail(internal_error())

    def give_back(self, line: _Line) -> None:
        """Keep a line for the next request, or close it."""
        if len(self._idle) < self._limits.upstream_idle_max:
            self._idle.append(line)
        else:
            line.close()

    def forget(self, line: _Line) -> None:
        """Never use a line again."""
        if line in self._idle:
            self._idle.remove(line)


class _Line(asyncio.Protocol):
    """One connection to the framework, one request at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have all the methods without being subclasses.
        self._transport = cast("asyncio.Transport", transport)

    def send(self, head: bytes, exchange: Exchange) -> None:
        """Send a request without a body."""
        self._exchange = exchange
        self._received = b""
        if self._transport is None or self._transport.is_closing():
            self.connection_lost(None)
            return
        self._transport.write(head)

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._exchange is None or len(self._received) > ANSWER_BYTES_MAX:
            self.close()
            return
        head, end_of_head, body = self._received.partition(b"\r\n\r\n")
        if not end_of_head:
            return
        status = _STATUS_LINE.match(head)
        if status is None:
            self.close()
            return
        length = _LENGTH.search(head)
        missing_bytes = int(length[1] if length else 0) - len(body)
        if missing_bytes <= 0:
            exchange, self._exchange = self._exchange, None
            self._upstream.settle(exchange, int(status[1]))
            if missing_bytes == 0:
                self._upstream.give_back(self)
            else:
                self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._upstream.forget(self)
        exchange, self._exchange = self._exchange, None
        if exchange is not None and not exchange.claimed:
            # Not claimed: no handler will answer. Claimed: it runs in our loop and still will.
            exchange.fail(Unavailable(_UNREACHABLE))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()
