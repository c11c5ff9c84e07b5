"""The shield: owns the public socket, counts connections, and drains them at the end."""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from api.access.access_control import AccessControl
from api.http.messages import Reply
from api.http_server.exchange import Exchange
from api.http_server.limits import PeerCounts, ServerLimits
from api.http_server.replies import RobynConnection
from api.http_server.request import RequestTarget
from domain.errors import Draining, SemanticError, Unavailable
from domain.shares import Shares
from ops.observe.logs import Logger

#: Part of the drain time in which streams end after they are asked to.
ENDING_GRACE_S: Final = 2.0

#: Paths that are served while the process drains.
HEALTH_PATHS: Final = ("/health/", "/metrics")
#: Methods that Robyn routes.
ROUTED_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

#: The route of requests that match none, or that are refused before one is looked up.
UNROUTED: Final = "unrouted"
#: Counted as the status of a request whose client left before the reply, as nginx does.
CLIENT_LEFT: Final = 499

#: How a vanished peer is detected: first probe, interval, number of probes.
_KEEPALIVE_IDLE_S: Final = 30
_KEEPALIVE_INTERVAL_S: Final = 10
_KEEPALIVE_PROBES: Final = 3


class RequestCounts:
    """What the shield has counted; written by its event loop, read by any thread.

    Attributes:
        in_flight: Requests whose reply is not complete.
        replies: Replies by the pattern of the route and the status; bounded, since both are few.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.in_flight = 0
        self.replies: Counter[tuple[str, int]] = Counter()


class ClientConnection(Protocol):
    """The connection of a client."""

    peer: str

    def abort(self) -> None:
        """Cut it."""

    def close_if_idle(self) -> None:
        """Close it if no request is on it."""

    def cut(self) -> None:
        """Cut it, and cancel the handler of its request."""


class Shield:
    """Everything between the public socket and Robyn; handlers find their exchanges here.

    Args:
        robyn: Loopback address of Robyn.
        unrouted: Replies to method and encoded path without a route, or raises.
        draining: Set by ``drain``, for others.
        samples: Whether the spans of a trace are exported, by its id.
    """

    def __init__(
        self,
        *,
        robyn: tuple[str, int],
        unrouted: Callable[[str, str], Reply],
        access: AccessControl,
        limits: ServerLimits,
        logger: Logger,
        draining: threading.Event | None = None,
        counts: RequestCounts | None = None,
        samples: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self._robyn = robyn
        #: Replies to method and encoded path without a route, or raises ``SemanticError``.
        self.unrouted_reply = unrouted
        self.access = access
        self.limits = limits
        #: The memory that bodies take.
        self.bodies = Shares(limits.bodies_bytes_max)
        self._peers = PeerCounts(limits)
        # Bound once, since binding costs time with every request.
        self.logger = logger.bind(component="http_server")
        self._samples = samples
        #: Called with each request and its status once its reply is sent or never will be.
        self.on_finish: Callable[[Exchange, int], None] = lambda _, __: None
        self._draining = draining or threading.Event()
        self._counts = counts or RequestCounts()
        self._ending = False
        self._exchanges: dict[str, Exchange] = {}
        #: Robyn's port is open to other users of the machine, who know no name of an exchange.
        self._secret = secrets.token_hex(16)
        self._numbers = count(1)
        self._connections: set[ClientConnection] = set()
        #: Those that were made before the drain.
        self._open: set[ClientConnection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: asyncio.Server | None = None

    @property
    def draining(self) -> bool:
        """Whether the process ends."""
        return self._draining.is_set()

    async def listen(
        self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]
    ) -> None:
        """Accept clients.

        Args:
            listener: Bound; stays open until ``drain``.
        """
        _find_dead_peers(listener)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(protocol, sock=listener)

    async def drain(self, drain_s: float) -> None:
        """Let open replies end, and cut the rest when the time is over.

        Until then new clients are answered 503 with ``Retry-After``, and ``/health/*`` is served.
        """
        self._draining.set()
        for connection in tuple(self._connections):
            connection.close_if_idle()
        try:
            await self._drain_open(drain_s)
        finally:
            if self._server is not None:
                self._server.close()

    async def _drain_open(self, drain_s: float) -> None:
        grace_s = min(ENDING_GRACE_S, drain_s / 2)
        if await self._emptied(drain_s - grace_s):
            return
        self.end_streams()
        if await self._emptied(grace_s):
            return
        self.logger.warning("connections_cut", count=len(self._connections))
        for connection in tuple(self._connections):
            connection.cut()

    def end_streams(self) -> None:
        """Ask every open stream, and each that begins later, to end now."""
        self._ending = True
        for exchange in self._exchanges.values():
            exchange.ending.set()

    async def _emptied(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    # Called by connections.

    def enter(self, connection: ClientConnection) -> SemanticError | None:
        """Count a connection; return why it is not served, ``None`` if it is."""
        self._connections.add(connection)
        if not self.draining:
            # The drain does not wait for clients that come during it.
            self._open.add(connection)
            self._empty.clear()
        refusal, is_cut = self._peers.enter(connection.peer)
        self._counts.connections = self._peers.total
        if is_cut:
            connection.abort()
        return refusal

    def leave(self, connection: ClientConnection) -> None:
        """Remove a connection."""
        self._connections.discard(connection)
        self._peers.leave(connection.peer)
        self._counts.connections = self._peers.total
        self._open.discard(connection)
        if not self._open:
            self._empty.set()

    def begin(self, peer: str) -> Exchange:
        """Name a request before it is read."""
        return Exchange.begin(self._samples, peer)

    def hand_out(self, exchange: Exchange) -> str:
        """Let the handler find an exchange until ``finish``; return its name for Robyn."""
        exchange.name = f"{self._secret}-{next(self._numbers)}"
        self._exchanges[exchange.name] = exchange
        self._counts.in_flight = len(self._exchanges)
        if self._ending:
            exchange.ending.set()
        return exchange.name

    def unrouted(self, method: str, target: RequestTarget) -> Reply | None:
        """Return the reply to a request that Robyn cannot route, ``None`` for any other.

        Raises:
            SemanticError: For the client.
        """
        if method in ROUTED_METHODS and target.route_path.startswith("/"):
            return None
        self.check_serving(target.route_path)
        return self.unrouted_reply(method, target.route_path)

    async def reach(self, connection: RobynConnection) -> None:
        """Connect to Robyn, or raise ``Unavailable``."""
        try:
            await self.connect(connection)
        except (OSError, TimeoutError) as error:
            raise Unavailable("the service is starting or stopping") from error

    async def connect(self, connection: RobynConnection) -> None:
        """Connect to Robyn.

        Raises:
            OSError: It does not answer.
        """
        async with asyncio.timeout(self.limits.robyn_connect_timeout_s):
            await asyncio.get_running_loop().create_connection(lambda: connection, *self._robyn)

    def finish(self, exchange: Exchange, status: int) -> None:
        """Forget a request whose reply is sent or will never be, and count it."""
        self._exchanges.pop(exchange.name, None)
        self._counts.in_flight = len(self._exchanges)
        request = exchange.request
        route = None if request is None else request.marks.route
        self._counts.replies[route or UNROUTED, status] += 1
        self.on_finish(exchange, status)

    # Called by handlers.

    def find(self, name: str) -> Exchange | None:
        """Return the exchange that was handed out under a name, once."""
        found = self._exchanges.get(name)
        return None if found is None or found.handling is not None else found

    def check_serving(self, path: str) -> None:
        """Refuse new requests during the drain.

        Raises:
            Draining: The process ends, and the path is none of ``HEALTH_PATHS``.
        """
        if self.draining and not path.startswith(HEALTH_PATHS):
            raise Draining("the service is stopping")


def _find_dead_peers(listener: socket.socket) -> None:
    """Let the kernel probe silent clients; accepted sockets inherit the options."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "darwin":
        idle = socket.TCP_KEEPALIVE
    else:
        idle = socket.TCP_KEEPIDLE
    listener.setsockopt(socket.IPPROTO_TCP, idle, _KEEPALIVE_IDLE_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
