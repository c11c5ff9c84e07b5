"""One request with its reply: the state that the shield and the handler share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, Final, Self

from structlog.contextvars import bind_contextvars

from api.access.access_control import AdmittedRequest
from api.http.messages import UNIDENTIFIED, Caller, Request, Signal
from api.http_server.limits import BodyShare
from api.http_server.request import BODY_MARK, RequestHead, body_too_large
from domain.log.trace import SAMPLED, TraceContext, new_trace, parse_traceparent
from ops.clock import uuid7_hex

#: The request header of W3C Trace Context.
TRACEPARENT_HEADER: Final = "traceparent"
#: How long one of Robyn's threads waits for a silent source before another stream has its turn.
#: There is a thread for each connection, but Robyn may spread connections unevenly.
TURN_S: Final = 2.0
#: Bytes that Robyn adds to a chunk beside the digits of its size, and its last chunk.
_CHUNK_LINES_BYTES: Final = 4
_LAST_CHUNK_BYTES: Final = 5
#: Pieces of a body are joined up to this size: the allocator keeps the places of small ones.
_BLOCK_BYTES: Final = 1024 * 1024


class StreamPipe:
    """The way of a stream from its source, in the event loop, through Robyn to its client.

    A thread of Robyn waits for the bytes. One piece at a time is with Robyn; what the source yields
    meanwhile goes after it as one piece. So the shield knows from the number of bytes, without
    parsing them, when a piece has passed and when the stream is over.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._waiting: list[bytes] = []
        #: With Robyn, and the bytes of its frame that have not come back yet.
        self._piece = b""
        self._framed_bytes = 0
        self._is_ended = False
        self._is_closed = False
        self._is_paused = False
        self._moved = asyncio.Event()
        self._turn: asyncio.TimerHandle | None = None
        #: From the source, and not yet passed on to the client.
        self.under_way_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether the stream has passed to its last byte."""
        return self._is_closed and not self._framed_bytes

    # Called by the handler's side.

    def open(self) -> Iterator[bytes]:
        """Return the body for Robyn.

        It runs no Python code: Robyn makes a new thread state for each call, whose first Python
        frame costs as much as a wake-up.
        """
        self._wait_for_turn()
        return iter(self._queue.get, None)

    def put(self, piece: bytes) -> None:
        """Send bytes."""
        self.under_way_bytes += len(piece)
        self._waiting.append(piece)
        self._send()

    def end(self) -> None:
        """End the stream behind the bytes that wait; further calls do nothing."""
        self._is_ended = True
        if self._turn is not None:
            self._turn.cancel()
        self._send()

    async def room(self, window_bytes: int) -> None:
        """Wait until the client takes bytes and at most ``window_bytes`` are under way."""
        while self._is_paused or self.under_way_bytes > window_bytes:
            self._moved.clear()
            await self._moved.wait()

    # Called by the shield.

    def passed(self, size_bytes: int) -> bytes:
        """Note that bytes have come from Robyn; return the piece that is whole with them, or none.

        Raises:
            ValueError: There are more bytes than the stream has.
        """
        self._framed_bytes -= size_bytes
        if self._framed_bytes < 0:
            raise ValueError
        if self._framed_bytes:
            return b""
        piece, self._piece = self._piece, b""
        self.under_way_bytes -= len(piece)
        self._moved.set()
        self._send()
        return piece

    def pause(self, *, is_paused: bool) -> None:
        """Note whether the client takes bytes."""
        self._is_paused = is_paused
        self._moved.set()

    def _send(self) -> None:
        # The end goes at once: the thread of a client that has left must not wait for it.
        if self._framed_bytes and not self._is_ended:
            return
        if self._waiting:
            piece = b"".join(self._waiting)
            self._waiting.clear()
            self._piece += piece
            self._framed_bytes += len(f"{len(piece):x}") + len(piece) + _CHUNK_LINES_BYTES
            self._queue.put(piece)
        if self._is_ended and not self._is_closed:
            self._is_closed = True
            self._framed_bytes += _LAST_CHUNK_BYTES
            self._queue.put(None)

    def _wait_for_turn(self) -> None:
        self._turn = asyncio.get_running_loop().call_later(TURN_S, self._give_turn)

    def _give_turn(self) -> None:
        """Let the thread of a silent stream serve another one; Robyn sends no empty chunk."""
        if not self._framed_bytes and self._queue.empty():
            self._queue.put(b"")
        self._wait_for_turn()


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A request and its reply; belongs to the event loop of shield and handlers.

    Attributes:
        parent: The span of the client, if its request names one.
        head: Its head, once it has come.
        body_bytes: Their length, which stays when they are passed on.
        name: Under which the handler finds it.
        request: What the handler got, once Robyn has called it.
        job_id: The job that the handler's log lines name, once the handler has ended.
        over: Set when the handler, and the source of its stream, have ended.
        handling: The task of the handler, once Robyn has called it.
        streaming: The task that iterates the source of the stream.
    """

    request_id: str
    trace: TraceContext
    parent: TraceContext | None = None
    peer: str = ""
    head: RequestHead | None = None
    admitted: AdmittedRequest | None = None
    share: BodyShare | None = None
    body: deque[bytes | bytearray] = field(default_factory=deque)
    body_bytes: int = 0
    body_bytes_max: int = 0
    path: str = ""
    name: str = ""
    request: Request | None = None
    job_id: str | None = None
    gone: Signal = field(default_factory=Signal)
    ending: Signal = field(default_factory=Signal)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    cut: Callable[[], None] = lambda: None
    pipe: StreamPipe = field(default_factory=StreamPipe)
    handling: asyncio.Task[Any] | None = None
    streaming: asyncio.Task[None] | None = None

    @classmethod
    def begin(cls, samples: Callable[[str], bool], peer: str = "") -> Self:
        """Name a request before it is read.

        Args:
            samples: Whether the spans of a trace are exported, by its id.
        """
        trace = new_trace()
        if samples(trace.trace_id):
            trace = replace(trace, flags=trace.flags | SAMPLED)
        return cls(request_id="req_" + uuid7_hex(), trace=trace, peer=peer)

    @property
    def caller(self) -> Caller:
        """The holder of its key."""
        return UNIDENTIFIED if self.admitted is None else self.admitted.caller

    def read(self, head: RequestHead) -> None:
        """Take the head, and continue the trace that it names, if it names one."""
        self.head, self.path = head, head.path
        parent = parse_traceparent(head.headers.get(TRACEPARENT_HEADER))
        if parent is not None:
            self.trace, self.parent = parent.new_child(), parent

    def take(self, data: bytes) -> None:
        """Keep bytes of the body; raises ``BrokenFraming`` if it is too long, or has no room."""
        self.body_bytes += len(data)
        if self.body_bytes > self.body_bytes_max:
            raise body_too_large(self.body_bytes_max)
        if self.share is not None:
            self.share.take(len(data))
        if not self.body or len(self.body[-1]) + len(data) > _BLOCK_BYTES:
            self.body.append(bytearray())
        self.body[-1] += data

    def enclose(self, lines: list[str]) -> None:
        """Put the head for Robyn before the body, and the mark of its end behind it.

        Args:
            lines: Of the head, without the length of the body.
        """
        if self.body:
            self.body.append(BODY_MARK)
            self.body_bytes += len(BODY_MARK)
        head = [*lines, f"content-length: {self.body_bytes}", "", ""]
        self.body.appendleft("\r\n".join(head).encode("ascii"))

    def release(self) -> None:
        """Give back what the request has taken of what all share."""
        self.body.clear()
        if self.share is not None:
            self.share.give_back()
        if self.admitted is not None:
            self.admitted.leave()

    def bind(self) -> None:
        """Let the log lines of this task carry the names."""
        bind_contextvars(request_id=self.request_id, trace_id=self.trace.trace_id)
        if self.job_id is not None:
            bind_contextvars(job_id=self.job_id)

    def leave(self) -> None:
        """Set ``gone``, and end the stream."""
        self.gone.set()
        if self.streaming is not None:
            # Later, since a task that is cancelled before its first step does not close its source.
            asyncio.get_running_loop().call_soon(self.streaming.cancel)

    def cancel(self) -> None:
        """End the handler and its stream."""
        self.leave()
        if self.handling is not None:
            self.handling.cancel()
