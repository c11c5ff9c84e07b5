"""A server connection without sockets: bytes in, bytes out, on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

import structlog

from api.access.access_control import AccessControl
from api.http.messages import Reply, Request, StreamReply
from api.http_server.body_budget import BodyBudget
from api.http_server.connection import Connection
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from domain.errors import SemanticError
from ops.setting_groups.service import ServerSettings
from tests.support.polling import eventually, let_tasks_run


class MemoryTransport(asyncio.Transport):
    """Records written bytes, and calls ``connection_lost`` as real transports do."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self.sent = b""
        self.reading = True
        self._closing = False

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("192.0.2.1", 1) if name == "peername" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self._closing
        self.sent += bytes(data)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()


class MemoryHost:
    """Counts connections and returns fixed answers."""

    def __init__(
        self,
        answer: Callable[[Request], Awaitable[Reply | StreamReply]],
        limits: ServerLimits,
        access: AccessControl | None = None,
    ) -> None:
        self._answer = answer
        self.limits = limits
        self.bodies = BodyBudget(limits.bodies_bytes_max)
        self.access = access or AccessControl.from_settings(
            ServerSettings(allowed_hosts=("x",)), connections_max=limits.connections_max
        )
        self.logger = structlog.stdlib.get_logger()
        self.draining = False
        self.inside = 0
        self.seen: list[Request] = []
        self.statuses: list[int] = []

    def enter(self, connection: Connection) -> SemanticError | None:
        del connection
        self.inside += 1
        return None

    def leave(self, connection: Connection) -> None:
        del connection
        self.inside -= 1

    async def answer(self, request: Request, route_path: str) -> Reply | StreamReply:
        del route_path
        self.seen.append(request)
        return await self._answer(request)

    def begin(self) -> Exchange:
        return Exchange.begin(lambda _: False)

    def finish(self, exchange: Exchange, status: int) -> None:
        del exchange
        self.statuses.append(status)


async def play(host: MemoryHost, pieces: Iterable[bytes]) -> bytes:
    """Send the pieces and EOF; return the received bytes once the connection is closed."""
    connection = Connection(host)
    transport = MemoryTransport(connection)
    connection.connection_made(transport)
    for piece in pieces:
        if transport.is_closing():
            break
        if piece:
            connection.data_received(piece)
        await let_tasks_run()
    if not transport.is_closing():
        connection.eof_received()
    await eventually(lambda: not host.inside)
    return transport.sent
