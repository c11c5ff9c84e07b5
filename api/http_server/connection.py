"""One client connection: reads a request, hands it to Robyn, passes the reply on, and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import h11

from api.access.access_control import AdmittedRequest
from api.errors import dialect_of, error_reply, internal_error
from api.http.messages import Reply
from api.http_server import errors
from api.http_server.body_budget import BodyShare
from api.http_server.exchange import Exchange
from api.http_server.reply_head import whole_reply
from api.http_server.request_counts import CLIENT_LEFT
from api.http_server.request_head import (
    RequestTarget,
    body_limit,
    check_framing,
    forwarded_head,
    keeps_alive,
    path_of,
    read_headers,
    read_target,
)
from api.http_server.request_reader import RequestReader
from api.http_server.robyn_connection import BrokenReply, RobynConnection
from api.http_server.server import Shield
from domain.errors import SemanticError, Unavailable

_CONTINUE = b"HTTP/1.1 100 \r\n\r\n"
_UNREACHABLE = "the service is starting or stopping"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A request whose head is read."""

    head: h11.Request
    headers: Mapping[str, str]

    @property
    def method(self) -> str:
        return self.head.method.decode("ascii")


class Connection(asyncio.Protocol):
    """The protocol of one client, and the task that serves it.

    Reading goes on while a request is handled, because the end of the input is the only sign of a
    client that has left. A client that has closed only its sending side counts as gone as well:
    the two look the same, and a job must not run on without a reader.
    """

    def __init__(self, shield: Shield) -> None:
        self._shield = shield
        self._limits = shield.limits
        self._reader = RequestReader(limits=shield.limits, resume=self._resume_reading)
        self._transport: asyncio.Transport | None = None
        self._lost = asyncio.Event()
        self._robyn: RobynConnection | None = None
        self._exchange: Exchange | None = None
        self._stall: asyncio.TimerHandle | None = None
        #: Address of the client.
        self.peer = ""
        self._refusal: SemanticError | None = None
        self._idle = True
        self._is_kept = False
        self._keeps_alive = True
        self._is_old_client = False
        self._is_unframed = False
        self._has_begun_reply = False
        self._lingering = False
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
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        """Take bytes; more than the size of a head behind the current request has to wait."""
        if self._lingering:
            self._surplus_bytes += len(data)
            if self._surplus_bytes > self._limits.linger_bytes_max:
                self.abort()
            return
        self._reader.feed(data)
        if self._exchange is not None:
            self._count_surplus(len(data))

    def eof_received(self) -> bool:
        """End the input; the task passes on the reply that is due and closes."""
        self._end_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the input and the output."""
        del exc
        self._lost.set()
        self._stop_stall()
        self._end_input()
        if self._exchange is not None:
            self._exchange.pause(is_paused=False)
        if self._robyn is not None:
            self._robyn.abort()

    def pause_writing(self) -> None:
        """Let the source of the reply wait, for a limited time."""
        if self._stall is None:
            loop = asyncio.get_running_loop()
            self._stall = loop.call_later(self._limits.stall_timeout_s, self.abort)
        self._set_paused(is_paused=True)

    def resume_writing(self) -> None:
        """Let the source of the reply go on."""
        self._stop_stall()
        self._set_paused(is_paused=False)

    def _set_paused(self, *, is_paused: bool) -> None:
        if self._robyn is not None:
            (self._robyn.pause if is_paused else self._robyn.resume)()
        if self._exchange is not None:
            self._exchange.pause(is_paused=is_paused)

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _end_input(self) -> None:
        if self._reader.over:
            return
        self._reader.feed_end()
        if self._exchange is not None:
            self._exchange.leave()

    def _count_surplus(self, received_bytes: int) -> None:
        self._surplus_bytes += received_bytes
        if self._surplus_bytes > self._limits.head_bytes_max and self._transport is not None:
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._lost.is_set():
            self._transport.resume_reading()

    # Called by the connection to Robyn.

    def take_head(self, head: bytes, *, is_chunked: bool) -> None:
        """Send the head of a reply, with ``connection: close`` if the connection ends."""
        self._has_begun_reply = True
        if self._ends_connection():
            self._keeps_alive = False
            line, _, fields = head.partition(b"\r\n")
            head = line + b"\r\nconnection: close\r\n" + fields
        self._is_unframed = self._is_old_client and is_chunked
        if self._is_unframed:
            head = head.replace(b"\r\ntransfer-encoding: chunked\r\n", b"\r\n", 1)
        self._write(head)

    def take_body(self, data: bytes, payload: list[bytes]) -> None:
        """Send bytes of a body; a client of HTTP/1.0 knows no chunks."""
        self._write(b"".join(payload) if self._is_unframed else data)
        if self._exchange is not None:
            self._exchange.passed(sum(map(len, payload)))

    def _ends_connection(self) -> bool:
        return (
            not self._keeps_alive
            or self._shield.draining
            or (self._reader.over and not self._reader.waiting_bytes)
        )

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    # Called by the shield.

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_idle(self) -> None:
        """Close the connection if no request is on it."""
        if self._idle and self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Cut the connection and cancel the handler of its request."""
        self.abort()
        if self._exchange is not None:
            self._exchange.cancel()

    # The task.

    async def _serve(self) -> None:
        try:
            while await self._serve_one():
                self._reader.next_request()
            await self._close()
        except ConnectionError:
            self.abort()
        except Exception:
            self._shield.logger.exception("connection_failed")
            self.abort()
        finally:
            if self._robyn is not None:
                self._robyn.abort()
            self._shield.leave(self)

    async def _serve_one(self) -> bool:
        """Serve one request; return whether another may follow."""
        self._idle = True
        if (self._is_kept and self._shield.draining) or not await self._reader.first_byte():
            return False
        self._idle, self._is_kept, self._has_begun_reply = False, True, False
        exchange = self._shield.begin(self.peer)
        asked: _Asked | None = None
        try:
            head = await self._reader.head()
            asked = _Asked(head, read_headers(head))
            if self._refusal is not None:
                raise self._refusal
            check_framing(head, self._limits)
            exchange.read(asked.headers)
            admitted = self._admit(asked)
        except SemanticError as error:
            await self._refuse(error, asked, exchange)
            return False
        exchange.caller = admitted.caller
        self._keeps_alive = keeps_alive(head, asked.headers)
        self._is_old_client = head.http_version == b"1.0"
        try:
            with self._shield.bodies.share(self.peer, admitted.caller) as share:
                return await self._serve_admitted(asked, exchange, share)
        finally:
            admitted.leave()

    def _admit(self, asked: _Asked) -> AdmittedRequest:
        """Check access before the body is read: a refused client must not send one."""
        target = asked.head.target.decode("ascii")
        return self._shield.access.admit(asked.method, target, asked.headers)

    async def _serve_admitted(self, asked: _Asked, exchange: Exchange, share: BodyShare) -> bool:
        """Read the body and reply; return whether another request may follow."""
        try:
            if self._reader.awaits_continue:
                self._write(_CONTINUE)
            body = await self._reader.body(body_limit(asked.head, self._limits), share)
        except errors.BrokenFraming as error:
            await self._refuse(error, asked, exchange)
            return False
        started_s = time.monotonic()
        status = CLIENT_LEFT
        self._begin(exchange)
        try:
            status = await self._answer(asked, body, exchange)
            await self._taken()
        finally:
            if exchange.is_handled:
                await exchange.over.wait()
            self._exchange = None
            exchange.bind()
            self._shield.finish(exchange, status)
        self._shield.logger.debug(
            "request_answered",
            method=asked.method,
            path=path_of(asked.head),
            status=status,
            key=exchange.caller.name,
            duration_ms=round((time.monotonic() - started_s) * 1000, 3),
        )
        return self._keeps_alive

    def _begin(self, exchange: Exchange) -> None:
        exchange.cut = self.abort
        if self._reader.over:
            exchange.leave()
        exchange.pause(is_paused=self._stall is not None)
        self._exchange, self._surplus_bytes = exchange, 0
        self._count_surplus(self._reader.waiting_bytes)

    async def _answer(self, asked: _Asked, body: bytes, exchange: Exchange) -> int:
        """Get a reply to the client; return its status."""
        exchange.path = path_of(asked.head)
        try:
            target = read_target(asked.head.target)
            exchange.path = target.path
            reply = self._shield.unrouted(asked.method, target)
            if reply is None:
                return await self._ask_robyn(asked, target, body, exchange)
        except SemanticError as error:
            dialect = dialect_of(exchange.path, asked.headers)
            reply = error_reply(error, dialect, exchange.request_id)
        return self._send(reply, asked, exchange)

    async def _ask_robyn(
        self, asked: _Asked, target: RequestTarget, body: bytes, exchange: Exchange
    ) -> int:
        head = forwarded_head(
            asked.method,
            target,
            asked.headers,
            exchange=self._shield.hand_out(exchange),
            length=len(body),
        )
        if len(head) > self._limits.robyn_head_bytes_max:
            raise errors.head_too_large(self._limits.robyn_head_bytes_max)
        robyn = await self._connected()
        try:
            return await robyn.ask(head + body, is_head=asked.method == "HEAD")
        except BrokenReply as error:
            if self._has_begun_reply or self._lost.is_set():
                raise
            self._shield.logger.error("robyn_refused", path=exchange.path)  # noqa: TRY400 - it has no trace
            raise internal_error() from error

    async def _connected(self) -> RobynConnection:
        if self._robyn is None or not self._robyn.is_open:
            robyn = RobynConnection(self)
            try:
                await self._shield.connect(robyn)
            except (OSError, TimeoutError) as error:
                raise Unavailable(_UNREACHABLE) from error
            self._robyn = robyn
            if self._lost.is_set():
                robyn.abort()
        return self._robyn

    def _send(self, reply: Reply, asked: _Asked, exchange: Exchange) -> int:
        """Send a reply that is not Robyn's; return its status."""
        self._keeps_alive = not self._ends_connection()
        more = self._shield.access.headers(asked.headers)
        bodiless = asked.method == "HEAD"
        close = not self._keeps_alive
        self._write(whole_reply(reply, exchange, more, bodiless=bodiless, close=close))
        return reply.status

    async def _refuse(self, error: SemanticError, asked: _Asked | None, exchange: Exchange) -> None:
        """Reply to a request that is not read to its end, so that the client gets the reply."""
        if self._lost.is_set():
            return
        self._keeps_alive = False
        if asked is None:
            dialect = errors.guess_dialect(self._reader.glimpse)
            asked = _Asked(h11.Request(method="GET", target="/", headers=[("host", "-")]), {})
        else:
            dialect = dialect_of(path_of(asked.head), asked.headers)
        self._shield.logger.info("request_refused", code=error.code)
        status = self._send(error_reply(error, dialect, exchange.request_id), asked, exchange)
        self._shield.finish(exchange, status)
        await self._linger()

    async def _linger(self) -> None:
        """Read for a moment: closing with unread bytes would reset the reply on its way."""
        self._lingering, self._surplus_bytes = True, 0
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        try:
            async with asyncio.timeout(self._limits.linger_s):
                await self._reader.end_of_input()
        except TimeoutError:
            self.abort()

    async def _taken(self) -> None:
        """Wait until the client has taken enough of the reply for another one.

        Raises:
            ConnectionResetError: It never will.
        """
        if self._exchange is not None:
            await self._exchange.room(self._limits.stream_window_bytes)
        if self._lost.is_set():
            message = "the client has left"
            raise ConnectionResetError(message)

    async def _close(self) -> None:
        """Close, and wait until the client has taken all bytes."""
        if self._transport is None:
            return
        self._transport.close()
        try:
            async with asyncio.timeout(self._limits.stall_timeout_s):
                await self._lost.wait()
        except TimeoutError:
            self.abort()
