"""The gate itself: owns the public socket, counts connections, and drains them at the end."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from typing import Final

from api.access.access_control import AccessControl
from api.http.messages import Reply, Request, StreamReply
from api.http_server.connection import Connection
from api.http_server.exchange import Exchange, Exchanges
from api.http_server.limits import ServerLimits
from api.http_server.upstream import Upstream
from ops.logs import Logger

#: Of the drain time, what streams get to say their last word in once they are told to.
ENDING_GRACE_S: Final = 2.0

#: How a peer that vanished without a word is found: first probe, interval, probes.
_KEEPALIVE_IDLE_S: Final = 30
_KEEPALIVE_INTERVAL_S: Final = 10
_KEEPALIVE_PROBES: Final = 3


class HttpServer:
    """Everything between the public socket and the framework.

    Args:
        upstream: The framework.
        exchanges: Where its handlers find the requests.
        unrouted: Answers method and encoded path where no route does, or raises.
        doors: Who may come in.
        limits: Sizes, times and counts.
        logger: Told of requests and failures.
    """

    def __init__(
        self,
        *,
        upstream: Upstream,
        exchanges: Exchanges,
        unrouted: Callable[[str, str], Reply],
        doors: AccessControl,
        limits: ServerLimits,
        logger: Logger,
    ) -> None:
        self._upstream = upstream
        self._exchanges = exchanges
        self._unrouted = unrouted
        self.doors = doors
        self.limits = limits
        # Bound once: a logger that is not costs a binding for every request.
        self.logger = logger.bind(component="gate")
        self.draining = False
        self._connections: set[Connection] = set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Begin to accept clients.

        Args:
            listener: Bound; stays open until ``drain``.
        """
        _find_dead_peers(listener)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), sock=listener)

    async def drain(self, drain_s: float) -> None:
        """Stop accepting, let open answers end, and cut what is left when the time is over."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.close_if_idle()
        grace_s = min(ENDING_GRACE_S, drain_s / 2)
        if await self._emptied(drain_s - grace_s):
            return
        self._exchanges.end_streams()
        if await self._emptied(grace_s):
            return
        self.logger.warning("connections_cut", count=len(self._connections))
        for connection in tuple(self._connections):
            connection.cut()

    async def _emptied(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    # What connections call.

    def enter(self, connection: Connection) -> bool:
        """Count a connection in; false where it is one too many and must be told so."""
        self._connections.add(connection)
        self._empty.clear()
        count = len(self._connections)
        if count > self.limits.connections_max + self.limits.refusals_max:
            connection.abort()
        return count <= self.limits.connections_max

    def leave(self, connection: Connection) -> None:
        """Count a connection out."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    async def answer(self, exchange: Exchange) -> Reply | StreamReply:
        """Have a request routed and handled.

        Raises:
            SemanticError: To be told to the caller.
        """
        request: Request = exchange.request
        told = self.doors.preflight(request.method, request.headers)
        if told is not None:
            return told
        self._exchanges.begin(exchange)
        await self._upstream.dispatch(exchange)
        reply = await exchange.answered()
        if reply is None:
            return self._unrouted(request.method, exchange.route_path)
        return reply

    def finish(self, exchange: Exchange) -> None:
        """Forget an exchange."""
        self._exchanges.end(exchange)


def _find_dead_peers(listener: socket.socket) -> None:
    """Have the kernel probe silent clients; accepted sockets inherit it."""
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "darwin":
        idle = socket.TCP_KEEPALIVE
    else:
        idle = socket.TCP_KEEPIDLE
    listener.setsockopt(socket.IPPROTO_TCP, idle, _KEEPALIVE_IDLE_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
