"""One client connection: reads a request, hands it to Robyn, passes the reply on, and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final, cast

import h11

from api.errors import error_reply, internal_error
from api.http.messages import Reply
from api.http_server.exchange import Exchange
from api.http_server.limits import BodyShare, Deadline
from api.http_server.replies import (
    CHUNKED,
    BrokenReply,
    RobynConnection,
    reply_headers,
    whole_reply,
)
from api.http_server.request import (
    RequestHead,
    guess_dialect,
    protocol_error,
    read_target,
    request_parser,
    too_slow,
)
from api.http_server.shield import CLIENT_LEFT, Shield
from domain.errors import SemanticError

_CONTINUE: Final = b"HTTP/1.1 100 \r\n\r\n"
#: Bytes of a head that are kept to find the dialect of a head that cannot be parsed.
_GLIMPSE_BYTES: Final = 512


class _State(Enum):
    #: Nothing of a request has come.
    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    #: The request is whole, and its reply is not.
    ANSWERING = auto()
    #: A request was refused; what still comes of it is dropped, since closing with unread bytes
    #: would reset the reply on its way.
    LINGERING = auto()


class Connection(asyncio.Protocol):
    """The protocol of one client.

    Reading goes on while a request is handled, because the end of the input is the only sign of a
    client that has left. A client that has closed only its sending side counts as gone as well:
    the two look the same, and a job must not run on without a reader.
    """

    def __init__(self, shield: Shield) -> None:
        self._shield = shield
        self._limits = shield.limits
        self._http = request_parser(shield.limits.head_bytes_max)
        self._glimpse = b""
        self._state = _State.IDLE
        #: The current request.
        self._exchange: Exchange | None = None
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.Transport
        self._robyn: RobynConnection | None = None
        #: Ends the state.
        self._timer = Deadline()
        #: Ends a connection whose client takes no bytes.
        self._stall = Deadline()
        #: Address of the client.
        self.peer = ""
        self._refusal: SemanticError | None = None
        self._keeps_alive = True
        self._has_begun_reply = False
        self._is_unframed = False
        #: Whether the input has ended, and the connection as a whole.
        self._is_over = False
        self._is_lost = False
        self._surplus_bytes = 0

    # Called by the client's transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        # uvloop's transports have all the methods without being subclasses.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._refusal = self._shield.enter(self)
        self._enter(_State.IDLE, self._limits.idle_timeout_s, self._close)

    def data_received(self, data: bytes) -> None:
        """Take bytes; more than the size of a head behind the current request has to wait."""
        if self._state is _State.LINGERING:
            self._surplus_bytes += len(data)
            if self._surplus_bytes > self._limits.linger_bytes_max:
                self.abort()
            return
        self._http.receive_data(data)
        if self._state is _State.ANSWERING:
            self._count_surplus(len(data))
            return
        if len(self._glimpse) < _GLIMPSE_BYTES:
            self._glimpse += data[:_GLIMPSE_BYTES]
        self._read()

    def eof_received(self) -> bool:
        """End the input; a reply that is due is passed on before the connection closes."""
        self._end_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the input and the output."""
        del exc
        self._is_lost = True
        self._stall.stop()
        self._end_input()
        if self._robyn is not None:
            self._robyn.abort()
        if self._state is _State.ANSWERING and self._exchange is not None:
            self._exchange.pipe.pause(is_paused=False)
            return
        self._leave()

    def pause_writing(self) -> None:
        """Let the source of the reply wait, for a limited time."""
        if not self._stall.is_set:
            self._stall.set(self._limits.stall_timeout_s, self.abort)
        self._set_paused(is_paused=True)

    def resume_writing(self) -> None:
        """Let the source of the reply go on."""
        self._stall.stop()
        self._set_paused(is_paused=False)

    def _set_paused(self, *, is_paused: bool) -> None:
        if self._robyn is not None:
            self._robyn.pause(is_paused=is_paused)
        if self._exchange is not None:
            self._exchange.pipe.pause(is_paused=is_paused)

    def _end_input(self) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._state is _State.LINGERING:
            self._close()
            return
        self._http.receive_data(b"")
        if self._state is not _State.ANSWERING:
            self._read()
        elif self._exchange is not None:
            self._exchange.leave()

    def _count_surplus(self, received_bytes: int) -> None:
        self._surplus_bytes += received_bytes
        if self._surplus_bytes > self._limits.head_bytes_max:
            self._transport.pause_reading()

    # Called by the connection to Robyn.

    def _take_head(self, head: bytes) -> None:
        """Send the head of a reply, with ``connection: close`` if the connection ends."""
        self._has_begun_reply = True
        if self._ends_connection():
            self._keeps_alive = False
            line, _, fields = head.partition(b"\r\n")
            head = line + b"\r\nconnection: close\r\n" + fields
        if self._is_unframed:
            head = head.replace(CHUNKED, b"\r\n", 1)
        self._write(head)

    def _take_body(self, data: bytes, piece: bytes | None) -> None:
        """Send bytes of a body; a client of HTTP/1.0 knows no chunks."""
        self._write(piece if self._is_unframed and piece is not None else data)

    def _ends_connection(self) -> bool:
        return (
            not self._keeps_alive
            or self._shield.draining
            or (self._is_over and not self._http.trailing_data[0])
        )

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    # Called by the shield.

    def abort(self) -> None:
        """Cut the connection."""
        self._transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if no request is on it."""
        if self._state is _State.IDLE:
            self._close()

    def cut(self) -> None:
        """Cut the connection and cancel the handler of its request."""
        self.abort()
        if self._exchange is not None:
            self._exchange.cancel()

    # Reading a request.

    def _enter(self, state: _State, limit_s: float, too_late: Callable[[], None]) -> None:
        """Begin a state, which ends with a call of ``too_late``."""
        self._state = state
        self._timer.set(limit_s, too_late)

    def _read(self) -> None:
        """Take what has come of a request, up to its end."""
        try:
            if self._state is _State.IDLE:
                self._begin()
            while self._state in {_State.HEAD, _State.BODY} and self._exchange is not None:
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    return
                self._take(event, self._exchange)
        except h11.RemoteProtocolError as error:
            self._refuse(protocol_error(error))
        except SemanticError as error:
            self._refuse(error)
        except Exception:
            self._shield.logger.exception("connection_failed")
            self.abort()

    def _begin(self) -> None:
        if self._http.trailing_data[0]:
            self._has_begun_reply = False
            self._exchange = self._shield.begin(self.peer)
            limit_s = self._limits.head_timeout_s
            self._enter(_State.HEAD, limit_s, lambda: self._refuse(too_slow("head", limit_s)))
        elif self._is_over:
            self._close()

    def _take(self, event: object, exchange: Exchange) -> None:
        """Take a part of a request; raises ``SemanticError`` for one that must not go on."""
        if isinstance(event, h11.Request):
            self._take_request(RequestHead.of(event), exchange)
        elif isinstance(event, h11.Data):
            exchange.take(event.data)
        elif exchange.head is not None:
            self._answer(exchange, exchange.head)

    def _take_request(self, head: RequestHead, exchange: Exchange) -> None:
        """Check access before the body is read: a refused client must not send one."""
        exchange.read(head)
        if self._refusal is not None:
            raise self._refusal
        head.check(self._limits)
        exchange.admitted = self._shield.access.admit(head.method, head.target, head.headers)
        exchange.share = BodyShare(self._shield.bodies, self.peer, exchange.caller)
        exchange.body_bytes_max = head.body_limit(self._limits)
        self._keeps_alive = head.keeps_alive
        limit_s = self._limits.body_timeout_s
        self._enter(_State.BODY, limit_s, lambda: self._refuse(too_slow("body", limit_s)))
        if self._http.they_are_waiting_for_100_continue:
            self._write(_CONTINUE)

    def _refuse(self, error: SemanticError) -> None:
        """Reply to a request that is not read to its end, so that the client gets the reply."""
        exchange = self._exchange
        if self._is_lost or exchange is None:
            return
        self._keeps_alive, self._surplus_bytes = False, 0
        self._shield.logger.info(
            "request_refused",
            code=error.code,
            request_id=exchange.request_id,
            trace_id=exchange.trace.trace_id,
        )
        head = exchange.head
        dialect = guess_dialect(self._glimpse) if head is None else head.dialect
        reply = error_reply(error, dialect, exchange.request_id)
        self._shield.finish(exchange, self._send(reply, exchange))
        exchange.release()
        self._enter(_State.LINGERING, self._limits.linger_s, self.abort)
        if self._is_over:
            self._close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()

    # Answering it.

    def _answer(self, exchange: Exchange, head: RequestHead) -> None:
        self._state = _State.ANSWERING
        self._timer.stop()
        exchange.cut = self.abort
        if self._is_over:
            exchange.leave()
        exchange.pipe.pause(is_paused=self._stall.is_set)
        self._surplus_bytes = 0
        self._count_surplus(len(self._http.trailing_data[0]))
        self._task = asyncio.get_running_loop().create_task(self._serve(exchange, head))

    async def _serve(self, exchange: Exchange, head: RequestHead) -> None:
        """Get a reply to the client, and wait until its handler has ended."""
        started_s, status = time.monotonic(), CLIENT_LEFT
        exchange.bind()
        try:
            status = await self._reply(exchange, head)
            await exchange.pipe.room(self._limits.stream_window_bytes)
        except ConnectionError:
            self.abort()
        except Exception:
            self._shield.logger.exception("connection_failed")
            self.abort()
        if exchange.handling is not None:
            await exchange.over.wait()
        exchange.bind()
        self._shield.finish(exchange, status)
        exchange.release()
        self._shield.logger.debug(
            "request_answered",
            method=head.method,
            path=head.path,
            status=status,
            key=exchange.caller.name,
            duration_ms=round((time.monotonic() - started_s) * 1000, 3),
        )
        self._go_on()

    async def _reply(self, exchange: Exchange, head: RequestHead) -> int:
        try:
            target = read_target(head.target)
            exchange.path = target.path
            reply = self._shield.unrouted(head.method, target)
            if reply is None:
                name = self._shield.hand_out(exchange)
                lines = head.forwarded(target, self._limits, exchange=name)
                return await self._ask_robyn(lines, exchange, head)
        except SemanticError as error:
            reply = error_reply(error, head.dialect, exchange.request_id)
        return self._send(reply, exchange)

    async def _ask_robyn(self, lines: list[str], exchange: Exchange, head: RequestHead) -> int:
        robyn = await self._connected()
        exchange.enclose(lines)
        self._is_unframed = head.version == "1.0"
        try:
            return await robyn.ask(exchange, is_head=head.method == "HEAD")
        except BrokenReply as error:
            if self._has_begun_reply or self._is_lost:
                raise
            self._shield.logger.error("robyn_refused", path=exchange.path)  # noqa: TRY400 - it has no trace
            raise internal_error() from error

    async def _connected(self) -> RobynConnection:
        if self._robyn is None or not self._robyn.is_open:
            robyn = RobynConnection(self._take_head, self._take_body)
            await self._shield.reach(robyn)
            self._robyn = robyn
            robyn.pause(is_paused=self._stall.is_set)
            if self._is_lost:
                robyn.abort()
        return self._robyn

    def _send(self, reply: Reply, exchange: Exchange) -> int:
        """Send a reply that is not Robyn's; return its status."""
        self._keeps_alive = not self._ends_connection()
        head = exchange.head
        more = self._shield.access.headers({} if head is None else head.headers)
        headers = reply_headers(reply, exchange, more)
        self._write(
            whole_reply(
                reply,
                headers,
                bodiless=head is not None and head.method == "HEAD",
                close=not self._keeps_alive,
            )
        )
        return reply.status

    def _go_on(self) -> None:
        """Begin with the next request, whose first bytes may have come already."""
        self._exchange = None
        if self._is_lost:
            self._leave()
            return
        self._http = request_parser(self._limits.head_bytes_max, self._http)
        self._glimpse = self._http.trailing_data[0][:_GLIMPSE_BYTES]
        self._enter(_State.IDLE, self._limits.idle_timeout_s, self._close)
        if not self._keeps_alive or self._shield.draining:
            self._close()
            return
        self._transport.resume_reading()
        self._read()

    def _close(self) -> None:
        """Close, and let the client take all bytes."""
        if not self._is_lost:
            self._transport.close()
            self._enter(_State.LINGERING, self._limits.stall_timeout_s, self.abort)

    def _leave(self) -> None:
        self._timer.stop()
        if self._exchange is not None:
            self._exchange.release()
        if self._robyn is not None:
            self._robyn.abort()
        self._shield.leave(self)
