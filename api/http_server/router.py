"""Picks the route of a request by asking Robyn over kept loopback connections.

Robyn only matches: a request line of unreserved bytes goes over, and the number of the route and
the values of its pattern come back. The route of a path without such values never changes, so
Robyn is asked for it once.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, cast
from urllib.parse import unquote

from api.errors import internal_error
from api.http.messages import Route
from api.http_server.limits import ServerLimits
from domain.errors import Unavailable
from ops.logs import Logger

#: Robyn runs in this process and answers with a status line and a few headers, so two expressions
#: parse it; anything else closes the connection. Bytes of clients are parsed by h11 only.
_STATUS_LINE: Final = re.compile(rb"HTTP/1\.1 ([2-5][0-9]{2}) ")
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]{1,5})(?:\r\n|$)", re.IGNORECASE)
#: Most bytes of an answer: a few short headers, and the values of one path.
ANSWER_BYTES_MAX: Final = 65_536

_OK: Final = 200
#: Robyn's statuses for a path and method without a route.
_UNROUTED: Final = frozenset({404, 405})
_UNREACHABLE: Final = "the service is starting or stopping"
SECRET_HEADER: Final = "x-semantic-router"  # noqa: S105 - the header's name, not its value
#: Methods that routes may have; Robyn is not asked about others.
ROUTED_METHODS: Final = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class RouteMatch:
    """A route and the values of its pattern, percent-decoded."""

    route: Route
    params: Mapping[str, str] = field(default_factory=dict)


class Router:
    """Matches methods and paths; belongs to one event loop.

    Args:
        routes: In the order in which Robyn's answers number them.
        host: Loopback address of Robyn.
        secret: Shows Robyn that a request comes from this router.
        limits: Connect timeout, and the number of idle connections.
        logger: Records answers that are not understood.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        host: str,
        port: int,
        *,
        secret: str,
        limits: ServerLimits,
        logger: Logger,
    ) -> None:
        self._routes = routes
        self._address = (host, port)
        self._secret = secret
        self._limits = limits
        self._logger = logger
        self._fixed: dict[tuple[str, str], RouteMatch] = {}
        self._idle: deque[_RobynConnection] = deque()

    async def match(self, method: str, route_path: str) -> RouteMatch | None:
        """Return the route of a request, ``None`` if it has none.

        Args:
            method: Upper case; HEAD has the route of GET.
            route_path: As ``RequestTarget.route_path``.

        Raises:
            Unavailable: Robyn cannot be reached.
            TransportError: Robyn answers something else.
        """
        method = "GET" if method == "HEAD" else method
        fixed = self._fixed.get((method, route_path))
        if fixed is not None:
            return fixed
        if method not in ROUTED_METHODS or not route_path.startswith("/"):
            # Robyn cannot parse a request for ``*``.
            return None
        status, body = await self._ask(method, route_path)
        if status in _UNROUTED:
            return None
        if status != _OK:
            self._logger.error("router_refused", status=status, path=route_path)
            raise internal_error()
        answer = json.loads(body)
        route = self._routes[answer["route"]]
        params = {name: unquote(value) for name, value in answer["params"].items()}
        found = RouteMatch(route, params)
        if "{" not in route.pattern:
            # Bounded by the number of routes: such a route has one path.
            self._fixed[method, route_path] = found
        return found

    async def _ask(self, method: str, route_path: str) -> tuple[int, bytes]:
        head = (
            f"{method} {route_path} HTTP/1.1\r\n"
            f"host: router\r\n"
            f"{SECRET_HEADER}: {self._secret}\r\n\r\n"
        ).encode("ascii")
        while self._idle:
            # Robyn may have closed a kept connection a moment ago.
            with suppress(ConnectionError):
                return await self._ask_over(self._idle.pop(), head)
        try:
            return await self._ask_over(await self._connect(), head)
        except ConnectionError as error:
            raise Unavailable(_UNREACHABLE) from error

    async def _ask_over(self, connection: _RobynConnection, head: bytes) -> tuple[int, bytes]:
        try:
            answer = await connection.ask(head)
        except BaseException:
            connection.close()
            raise
        if connection.is_open and len(self._idle) < self._limits.router_idle_max:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connect(self) -> _RobynConnection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._limits.router_connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _RobynConnection(self._forget), *self._address
                )
        except (OSError, TimeoutError) as error:
            raise Unavailable(_UNREACHABLE) from error
        return connection

    def _forget(self, connection: _RobynConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)


class _RobynConnection(asyncio.Protocol):
    """One connection to Robyn, one request at a time."""

    def __init__(self, forget: Callable[[_RobynConnection], None]) -> None:
        self._forget = forget
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._received = b""

    @property
    def is_open(self) -> bool:
        """Whether a further request may go over it."""
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have all the methods without being subclasses.
        self._transport = cast("asyncio.Transport", transport)

    async def ask(self, head: bytes) -> tuple[int, bytes]:
        """Send a request without a body; return status and body of the answer.

        Raises:
            ConnectionError: The connection ended without an answer.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError
        self._received = b""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(head)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._answer is None or len(self._received) > ANSWER_BYTES_MAX:
            self.close()
            return
        head, end_of_head, body = self._received.partition(b"\r\n\r\n")
        if not end_of_head:
            return
        status, length = _STATUS_LINE.match(head), _LENGTH.search(head)
        missing_bytes = int(length[1] if length else 0) - len(body)
        if status is None or missing_bytes < 0:
            self.close()
        elif missing_bytes == 0:
            answer, self._answer = self._answer, None
            if not answer.done():
                answer.set_result((int(status[1]), body))

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._forget(self)
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():
            answer.set_exception(ConnectionResetError())

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()
