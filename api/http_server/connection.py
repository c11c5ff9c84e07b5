"""One client connection: reads a request, has it answered, writes the answer, and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Protocol, cast

import h11

from api.access.access_control import AccessControl, AdmittedRequest
from api.errors import dialect_of, error_reply
from api.http.messages import Reply, Request, StreamReply
from api.http_server import errors
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from api.http_server.reply_writer import ReplyContext, ReplyWriter
from api.http_server.request_head import check_content, check_framing, read_headers, read_target
from api.http_server.request_reader import RequestReader
from domain.errors import SemanticError
from ops.clock import uuid7_hex
from ops.logs import Logger


class ConnectionHost(Protocol):
    """What a connection needs of the gate it came through."""

    @property
    def limits(self) -> ServerLimits:
        """Sizes and times."""

    @property
    def logger(self) -> Logger:
        """Told of requests and of failures."""

    @property
    def doors(self) -> AccessControl:
        """Who may come in."""

    @property
    def draining(self) -> bool:
        """The process is shutting down: no further request on any connection."""

    def enter(self, connection: Connection) -> bool:
        """Count a connection in; false where it is one too many and must be told so."""

    def leave(self, connection: Connection) -> None:
        """Count a connection out, once nothing of it is left."""

    async def answer(self, exchange: Exchange) -> Reply | StreamReply:
        """Have a request answered.

        Raises:
            SemanticError: To be told to the caller.
        """

    def finish(self, exchange: Exchange) -> None:
        """Forget an exchange whose answer is sent or will never be."""


class Connection(asyncio.Protocol):
    """The protocol of one client, and the task that serves it.

    Reading goes on while a request is answered, because the end of the input is the only sign of
    a client that has left. A client that has closed only its sending side counts as gone as well:
    the two cannot be told apart, and waiting for the difference would decode for nobody.
    """

    def __init__(self, desk: ConnectionHost) -> None:
        self._desk = desk
        self._limits = desk.limits
        self._http = h11.Connection(h11.SERVER, desk.limits.head_bytes_max)
        self._reader = RequestReader(self._http, limits=desk.limits, resume=self._resume_reading)
        self._writer = ReplyWriter(self, self._http, limits=desk.limits, logger=desk.logger)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._stream: asyncio.Task[None] | None = None
        self._exchange: Exchange | None = None
        self._peer = ""
        self._served = True
        self._idle = True
        self._lingering = False
        self._surplus_bytes = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        # uvloop's transports have all the methods without being subclasses.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        peer = transport.get_extra_info("peername")
        self._peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._served = self._desk.enter(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        """Take bytes; more than a head's worth behind a request at hand has to wait."""
        if self._lingering:
            self._surplus_bytes += len(data)
            if self._surplus_bytes > self._limits.linger_bytes_max:
                self.abort()
            return
        self._reader.feed(data)
        if self._exchange is not None:
            self._count_surplus(len(data))

    def eof_received(self) -> bool:
        """Note that the client sends no more; the task answers what is owed and closes."""
        self._end_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that nothing can be sent any more."""
        del exc
        self._lost.set()
        self._writable.set()
        self._end_input()

    def pause_writing(self) -> None:
        """Let the source of the answer wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let the source of the answer go on."""
        self._writable.set()

    def _end_input(self) -> None:
        if self._reader.over:
            return
        self._reader.feed_end()
        if self._exchange is not None:
            self._exchange.request.gone.set()
        if self._stream is not None:
            self._stream.cancel()

    def _count_surplus(self, received_bytes: int) -> None:
        self._surplus_bytes += received_bytes
        if self._surplus_bytes > self._limits.head_bytes_max and self._transport is not None:
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._lost.is_set():
            self._transport.resume_reading()

    # What the writer calls.

    def write(self, data: bytes) -> None:
        """Send, or keep until the client takes it."""
        if self._transport is not None and not self._lost.is_set():
            self._transport.write(data)

    async def drained(self) -> None:
        """Wait until the client has taken enough, but not for ever."""
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(self._limits.stall_timeout_s):
                    await self._writable.wait()
            except TimeoutError as error:
                message = "the client takes nothing"
                raise ConnectionResetError(message) from error
        if self._lost.is_set():
            message = "the client has left"
            raise ConnectionResetError(message)

    def abort(self) -> None:
        """Cut the connection."""
        if self._transport is not None:
            self._transport.abort()

    # What the gate calls.

    def close_if_idle(self) -> None:
        """Close the connection if no request is on it."""
        if self._idle and self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """End at once, whatever is going on."""
        self.abort()
        if self._task is not None:
            self._task.cancel()

    # The task.

    async def _serve(self) -> None:
        try:
            while await self._serve_one():
                pass
            await self._close()
        except ConnectionResetError:
            self.abort()
        except Exception:
            self._desk.logger.exception("connection_failed")
            self.abort()
        finally:
            self._desk.leave(self)

    async def _serve_one(self) -> bool:
        """Serve one request; return whether another may follow."""
        self._idle = True
        if self._desk.draining or not await self._reader.first_byte():
            return False
        self._idle = False
        request_id = "req_" + uuid7_hex()
        head: h11.Request | None = None
        try:
            head = await self._reader.head()
            if not self._served:
                raise errors.too_many_connections(self._limits.connections_max)
            check_framing(head, self._limits)
            visit = self._enter(head)
        except SemanticError as error:
            await self._refuse(error, head, request_id)
            return False
        try:
            return await self._serve_visit(visit, head, request_id)
        finally:
            visit.leave()

    def _enter(self, head: h11.Request) -> AdmittedRequest:
        """Pass the doors before the body is read: who is refused shall not send one."""
        method, target = head.method.decode("ascii"), head.target.decode("ascii")
        return self._desk.doors.enter(method, target, read_headers(head))

    async def _serve_visit(
        self, visit: AdmittedRequest, head: h11.Request, request_id: str
    ) -> bool:
        """Read the body and answer; return whether another request may follow."""
        try:
            if self._http.they_are_waiting_for_100_continue:
                self.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])))
            body = await self._reader.body()
        except errors.BrokenFraming as error:
            await self._refuse(error, head, request_id)
            return False
        await self._respond(head, body, request_id, visit.holder)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def _refuse(
        self, error: SemanticError, head: h11.Request | None, request_id: str
    ) -> None:
        """Answer a request that cannot be read to its end, so that the client sees the answer."""
        if self._lost.is_set():
            return
        if head is None:
            dialect = errors.guess_dialect(self._reader.glimpse)
            headers: Mapping[str, str] = {}
        else:
            dialect = dialect_of(_path_of(head), read_headers(head))
            headers = self._desk.doors.headers(read_headers(head))
        to = ReplyContext(
            request_id=request_id,
            dialect=dialect,
            bodiless=head is not None and head.method == b"HEAD",
            close=True,
            headers=headers,
        )
        self._desk.logger.info("request_refused", request_id=request_id, code=error.code)
        await self._writer.send(error_reply(error, dialect, request_id), to)
        await self._linger()

    async def _linger(self) -> None:
        """Read on for a moment: closing on unread bytes would reset what was just sent."""
        self._lingering = True
        self._surplus_bytes = 0
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()
        try:
            async with asyncio.timeout(self._limits.linger_s):
                await self._reader.end_of_input()
        except TimeoutError:
            self.abort()

    async def _respond(self, head: h11.Request, body: bytes, request_id: str, holder: str) -> None:
        started_s = time.monotonic()
        headers = read_headers(head)
        dialect = dialect_of(_path_of(head), headers)
        reply: Reply | StreamReply
        try:
            try:
                reply = await self._desk.answer(self._begin(head, headers, body, request_id))
            except SemanticError as error:
                reply = error_reply(error, dialect, request_id)
            to = ReplyContext(
                request_id=request_id,
                dialect=dialect,
                bodiless=head.method == b"HEAD",
                close=self._desk.draining or (self._reader.over and not self._reader.waiting_bytes),
                headers=self._desk.doors.headers(headers),
            )
            await self._send(reply, to)
        finally:
            exchange, self._exchange = self._exchange, None
            if exchange is not None:
                self._desk.finish(exchange)
        self._desk.logger.debug(
            "request_answered",
            request_id=request_id,
            method=head.method.decode("ascii"),
            path=_path_of(head),
            status=reply.status,
            key=holder,
            duration_ms=round((time.monotonic() - started_s) * 1000, 3),
        )

    def _begin(
        self, head: h11.Request, headers: dict[str, str], body: bytes, request_id: str
    ) -> Exchange:
        target = read_target(head.target)
        check_content(headers)
        request = Request(
            id=request_id,
            method=head.method.decode("ascii"),
            path=target.path,
            query=target.query,
            headers=headers,
            body=body,
            peer=self._peer,
        )
        if self._reader.over:
            request.gone.set()
        self._exchange = Exchange(
            request, route_path=target.route_path, dialect=dialect_of(target.path, headers)
        )
        self._surplus_bytes = 0
        self._count_surplus(self._reader.waiting_bytes)
        return self._exchange

    async def _send(self, reply: Reply | StreamReply, to: ReplyContext) -> None:
        """Send an answer; a stream in a task of its own, which ends when the client has gone."""
        if isinstance(reply, Reply):
            await self._writer.send(reply, to)
            return
        if self._reader.over:
            await self._writer.discard(reply)
            message = "the client has left"
            raise ConnectionResetError(message)
        self._stream = asyncio.get_running_loop().create_task(self._writer.send(reply, to))
        try:
            await asyncio.wait({self._stream})
        finally:
            stream, self._stream = self._stream, None
            if not stream.done():
                stream.cancel()
                await asyncio.wait({stream}, timeout=self._limits.close_timeout_s)
        if stream.cancelled():
            # Cancelled before its first step it could not close its source.
            await self._writer.discard(reply)
            message = "the client has left"
            raise ConnectionResetError(message)
        stream.result()

    async def _close(self) -> None:
        """Close, and wait until the client has taken what is written."""
        if self._transport is None:
            return
        self._transport.close()
        try:
            async with asyncio.timeout(self._limits.stall_timeout_s):
                await self._lost.wait()
        except TimeoutError:
            self.abort()


def _path_of(head: h11.Request) -> str:
    """Return the path as sent: enough to choose words for an error, and for the log."""
    return head.target.split(b"?", 1)[0].decode("ascii")
