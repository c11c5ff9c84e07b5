"""The shield of one client without sockets or Robyn: bytes in, bytes out, on a loop of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from urllib.parse import parse_qs, unquote

import structlog

from api.access.access_control import AccessControl
from api.framework.answer import Answering
from api.http.messages import Reply, Request, StreamReply
from api.http_server.connection import Connection
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from api.http_server.replies import RobynConnection
from api.http_server.request import BODY_MARK, EXCHANGE_HEADER, RequestTarget
from api.http_server.shield import ClientConnection, Shield
from domain.errors import SemanticError
from ops.settings.service import ServerSettings
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


class MemoryRobyn(MemoryTransport):
    """Robyn's end of a connection: runs the handler, and frames its reply as Robyn does."""

    def __init__(self, host: MemoryHost, connection: RobynConnection) -> None:
        super().__init__(connection)
        self._host = host
        self._connection = connection
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._received = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._received += bytes(data)
        head, _, body = self._received.partition(b"\r\n\r\n")
        length = int(head.rpartition(b"\r\ncontent-length: ")[2])
        assert len(body) <= length
        if len(body) < length:
            return
        self._received = b""
        task = asyncio.get_running_loop().create_task(self._serve(head, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def pause_reading(self) -> None:
        self._may_send.clear()

    def resume_reading(self) -> None:
        self._may_send.set()

    def abort(self) -> None:
        self._may_send.set()
        super().abort()

    async def _serve(self, head: bytes, body: bytes) -> None:
        lines = head.decode("ascii").split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        assert not body or body.endswith(BODY_MARK)
        exchange = self._host.exchanges[headers.pop(EXCHANGE_HEADER)]
        method, target, _ = lines[0].split(" ")
        path, _, query = target.partition("?")
        request = Request(
            id=exchange.request_id,
            method=method,
            path=unquote(path),
            query=parse_qs(query, keep_blank_values=True),
            headers=headers,
            body=body.removesuffix(BODY_MARK),
            peer=exchange.peer,
            caller=exchange.caller,
            gone=exchange.gone,
            ending=exchange.ending,
        )
        answer = await self._host.answering.answer(
            request, exchange, self._host.answer, pattern="/"
        )
        lines = [f"HTTP/1.1 {answer.status} OK"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        if isinstance(answer.body, bytes):
            lines += [f"content-length: {len(answer.body)}", "", ""]
            sent = b"" if method == "HEAD" else answer.body
            await self._send("\r\n".join(lines).encode() + sent)
            return
        lines += ["transfer-encoding: chunked", "", ""]
        await self._send("\r\n".join(lines).encode())
        while (piece := await asyncio.to_thread(next, answer.body, None)) is not None:
            if piece:
                await self._send(b"%x\r\n%s\r\n" % (len(piece), piece))
        await self._send(b"0\r\n\r\n")

    async def _send(self, data: bytes) -> None:
        await self._may_send.wait()
        if not self.is_closing():
            self._connection.data_received(data)


class MemoryHost(Shield):
    """A shield in front of ``MemoryRobyn``, where one handler answers every path."""

    def __init__(
        self,
        answer: Callable[[Request], Awaitable[Reply | StreamReply]],
        limits: ServerLimits,
        access: AccessControl | None = None,
    ) -> None:
        super().__init__(
            robyn=("127.0.0.1", 1),
            unrouted=lambda method, route_path: Reply(body=f"{method} {route_path}".encode()),
            access=access
            or AccessControl.from_settings(
                ServerSettings(allowed_hosts=("x",)), connections_max=limits.connections_max
            ),
            limits=limits,
            logger=structlog.stdlib.get_logger(),
        )
        self._answer = answer
        self.answering = Answering(self)
        self.inside = 0
        self.seen: list[Request] = []
        self.statuses: list[int] = []
        self.exchanges: dict[str, Exchange] = {}

    def enter(self, connection: ClientConnection) -> SemanticError | None:
        self.inside += 1
        return super().enter(connection)

    def leave(self, connection: ClientConnection) -> None:
        self.inside -= 1
        super().leave(connection)

    async def answer(self, request: Request) -> Reply | StreamReply:
        self.seen.append(request)
        return await self._answer(request)

    def hand_out(self, exchange: Exchange) -> str:
        name = super().hand_out(exchange)
        self.exchanges[name] = exchange
        return name

    def unrouted(self, method: str, target: RequestTarget) -> Reply | None:
        del method, target
        return None

    async def connect(self, connection: RobynConnection) -> None:
        connection.connection_made(MemoryRobyn(self, connection))

    def finish(self, exchange: Exchange, status: int) -> None:
        self.exchanges.pop(exchange.name, None)
        self.statuses.append(status)
        super().finish(exchange, status)


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
