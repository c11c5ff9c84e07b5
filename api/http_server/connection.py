"""One client connection: reads a request, gets its reply, writes it, and again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Protocol

import h11

from api.access.access_control import AccessControl, AdmittedRequest
from api.errors import dialect_of, error_reply, internal_error
from api.http.messages import Reply, Request, StreamReply
from api.http_server import errors
from api.http_server.body_budget import BodyBudget, BodyShare
from api.http_server.client_output import ClientOutput
from api.http_server.exchange import Exchange
from api.http_server.limits import ServerLimits
from api.http_server.reply_writer import ReplyContext, ReplyWriter, warning_header
from api.http_server.request_counts import CLIENT_LEFT
from api.http_server.request_head import (
    RequestTarget,
    body_limit,
    check_content,
    check_framing,
    path_of,
    read_headers,
    read_target,
)
from api.http_server.request_reader import RequestReader
from api.http_server.strict_parser import request_parser
from domain.errors import SemanticError
from ops.logs import Logger


class ConnectionHost(Protocol):
    """The server of a connection."""

    @property
    def limits(self) -> ServerLimits:
        """Sizes and times."""

    @property
    def logger(self) -> Logger:
        """Records requests and failures."""

    @property
    def access(self) -> AccessControl:
        """Which requests are admitted."""

    @property
    def draining(self) -> bool:
        """Whether the process ends: no connection serves a second request."""

    @property
    def bodies(self) -> BodyBudget:
        """Counts the bytes of all bodies."""

    def enter(self, connection: Connection) -> SemanticError | None:
        """Count a connection; return why it is not served, ``None`` if it is."""

    def leave(self, connection: Connection) -> None:
        """Remove a connection that has ended."""

    async def answer(self, request: Request, route_path: str) -> Reply | StreamReply:
        """Route a request and run its handler.

        Raises:
            SemanticError: For the client.
        """

    def begin(self) -> Exchange:
        """Name a request before it is read."""

    def finish(self, exchange: Exchange, status: int) -> None:
        """Forget a request whose reply is sent or will never be, and count the reply."""


class Connection(asyncio.Protocol):
    """The protocol of one client, and the task that serves it.

    Reading goes on while a request is handled, because the end of the input is the only sign of a
    client that has left. A client that has closed only its sending side counts as gone as well:
    the two look the same, and a job must not run on without a reader.
    """

    def __init__(self, host: ConnectionHost) -> None:
        self._host = host
        self._limits = host.limits
        self._http = request_parser(host.limits.head_bytes_max)
        self._reader = RequestReader(self._http, limits=host.limits, resume=self._resume_reading)
        self._output = ClientOutput(host.limits)
        self._writer = ReplyWriter(self._output, self._http, limits=host.limits, logger=host.logger)
        self._task: asyncio.Task[None] | None = None
        self._stream: asyncio.Task[None] | None = None
        self._request: Request | None = None
        #: Address of the client.
        self.peer = ""
        self._refusal: SemanticError | None = None
        self._idle = True
        self._is_kept = False
        self._lingering = False
        self._surplus_bytes = 0

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        self._output.attach(transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) else ""
        self._refusal = self._host.enter(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        """Take bytes; more than the size of a head behind the current request has to wait."""
        if self._lingering:
            self._surplus_bytes += len(data)
            if self._surplus_bytes > self._limits.linger_bytes_max:
                self.abort()
            return
        self._reader.feed(data)
        if self._request is not None:
            self._count_surplus(len(data))

    def eof_received(self) -> bool:
        """End the input; the task sends the reply that is due and closes."""
        self._end_input()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """End the input and the output."""
        del exc
        self._output.end()
        self._end_input()

    def pause_writing(self) -> None:
        """Let the source of the reply wait."""
        self._output.pause()

    def resume_writing(self) -> None:
        """Let the source of the reply go on."""
        self._output.resume()

    def _end_input(self) -> None:
        if self._reader.over:
            return
        self._reader.feed_end()
        if self._request is not None:
            self._request.gone.set()
        if self._stream is not None:
            self._stream.cancel()

    def _count_surplus(self, received_bytes: int) -> None:
        self._surplus_bytes += received_bytes
        if self._surplus_bytes > self._limits.head_bytes_max and self._output.transport is not None:
            self._output.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._output.transport is not None and not self._output.lost.is_set():
            self._output.transport.resume_reading()

    # Called by the server.

    def abort(self) -> None:
        """Cut the connection."""
        self._output.abort()

    def close_if_idle(self) -> None:
        """Close the connection if no request is on it."""
        if self._idle and self._output.transport is not None:
            self._output.transport.close()

    def cut(self) -> None:
        """Cut the connection and cancel its task."""
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
            self._host.logger.exception("connection_failed")
            self.abort()
        finally:
            self._host.leave(self)

    async def _serve_one(self) -> bool:
        """Serve one request; return whether another may follow."""
        self._idle = True
        if (self._is_kept and self._host.draining) or not await self._reader.first_byte():
            return False
        self._idle, self._is_kept = False, True
        exchange = self._host.begin()
        head: h11.Request | None = None
        try:
            head = await self._reader.head()
            if self._refusal is not None:
                raise self._refusal
            check_framing(head, self._limits)
            exchange = exchange.read(read_headers(head))
            admitted = self._admit(head)
        except SemanticError as error:
            await self._refuse(error, head, exchange)
            return False
        try:
            with self._host.bodies.share(self.peer, admitted.caller) as share:
                return await self._serve_admitted(head, exchange.of(admitted.caller), share)
        finally:
            admitted.leave()

    def _admit(self, head: h11.Request) -> AdmittedRequest:
        """Check access before the body is read: a refused client must not send one."""
        method, target = head.method.decode("ascii"), head.target.decode("ascii")
        return self._host.access.admit(method, target, read_headers(head))

    async def _serve_admitted(
        self, head: h11.Request, exchange: Exchange, share: BodyShare
    ) -> bool:
        """Read the body and reply; return whether another request may follow."""
        try:
            if self._http.they_are_waiting_for_100_continue:
                self._output.write(
                    self._http.send(h11.InformationalResponse(status_code=100, headers=[]))
                )
            body = await self._reader.body(body_limit(head, self._limits), share)
        except errors.BrokenFraming as error:
            await self._refuse(error, head, exchange)
            return False
        await self._respond(head, body, exchange)
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            return True
        return False

    async def _refuse(
        self, error: SemanticError, head: h11.Request | None, exchange: Exchange
    ) -> None:
        """Reply to a request that is not read to its end, so that the client gets the reply."""
        if self._output.lost.is_set():
            return
        if head is None:
            dialect = errors.guess_dialect(self._reader.glimpse)
            headers: Mapping[str, str] = {}
        else:
            dialect = dialect_of(path_of(head), read_headers(head))
            headers = self._host.access.headers(read_headers(head))
        to = ReplyContext(
            exchange=exchange,
            dialect=dialect,
            bodiless=head is not None and head.method == b"HEAD",
            close=True,
            headers=headers,
        )
        self._host.logger.info("request_refused", code=error.code)
        reply = error_reply(error, dialect, exchange.request_id)
        self._host.finish(exchange, reply.status)
        await self._writer.send(reply, to)
        await self._linger()

    async def _linger(self) -> None:
        """Read for a moment: closing with unread bytes would reset the reply on its way."""
        self._lingering, self._surplus_bytes = True, 0
        if self._output.transport is not None and self._output.transport.can_write_eof():
            self._output.transport.write_eof()
        try:
            async with asyncio.timeout(self._limits.linger_s):
                await self._reader.end_of_input()
        except TimeoutError:
            self.abort()

    async def _respond(self, head: h11.Request, body: bytes, exchange: Exchange) -> None:
        started_s = time.monotonic()
        headers = read_headers(head)
        dialect = dialect_of(path_of(head), headers)
        status = CLIENT_LEFT
        try:
            reply = await self._reply(head, headers, body, exchange)
            status = reply.status
            to = ReplyContext(
                exchange=exchange,
                dialect=dialect,
                bodiless=head.method == b"HEAD",
                close=self._host.draining or (self._reader.over and not self._reader.waiting_bytes),
                headers={**warning_header(self._request), **self._host.access.headers(headers)},
            )
            await self._send(reply, to)
        finally:
            self._request = None
            self._host.finish(exchange, status)
        self._host.logger.debug(
            "request_answered",
            method=head.method.decode("ascii"),
            path=path_of(head),
            status=reply.status,
            key=exchange.caller.name,
            duration_ms=round((time.monotonic() - started_s) * 1000, 3),
        )

    async def _reply(
        self, head: h11.Request, headers: dict[str, str], body: bytes, exchange: Exchange
    ) -> Reply | StreamReply:
        """Return the reply to a request; the one place where failures become replies."""
        path = path_of(head)
        error: SemanticError
        request: Request | None = None
        try:
            target = read_target(head.target)
            path = target.path
            check_content(headers)
            request = self._begin(head, headers, body, exchange, target)
            return await self._host.answer(request, target.route_path)
        except SemanticError as failure:
            error = failure
        except Exception:
            route = None if request is None else request.marks.route
            self._host.logger.exception("handler_failed", route=route)
            error = internal_error()
        jobs = () if request is None else request.marks.jobs
        return error_reply(error, dialect_of(path, headers), exchange.request_id, jobs=jobs)

    def _begin(
        self,
        head: h11.Request,
        headers: dict[str, str],
        body: bytes,
        exchange: Exchange,
        target: RequestTarget,
    ) -> Request:
        request = Request(
            id=exchange.request_id,
            trace=exchange.trace,
            method=head.method.decode("ascii"),
            path=target.path,
            query=target.query,
            headers=headers,
            body=body,
            peer=self.peer,
            caller=exchange.caller,
        )
        if self._reader.over:
            request.gone.set()
        self._request, self._surplus_bytes = request, 0
        self._count_surplus(self._reader.waiting_bytes)
        return request

    async def _send(self, reply: Reply | StreamReply, to: ReplyContext) -> None:
        """Send a reply; a stream in a task of its own, which ends when the client has left."""
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
            # A task that is cancelled before its first step does not close its source.
            await self._writer.discard(reply)
            message = "the client has left"
            raise ConnectionResetError(message)
        stream.result()

    async def _close(self) -> None:
        """Close, and wait until the client has taken all bytes."""
        if self._output.transport is None:
            return
        self._output.transport.close()
        try:
            async with asyncio.timeout(self._limits.stall_timeout_s):
                await self._output.lost.wait()
        except TimeoutError:
            self.abort()
