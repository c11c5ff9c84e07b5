"""One request with its reply: the state that the shield and the handler share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from structlog.contextvars import bind_contextvars, clear_contextvars

from api.http.messages import UNIDENTIFIED, Caller, Request
from domain.log.trace import SAMPLED, TraceContext, new_trace, parse_traceparent
from ops.clock import uuid7_hex

#: The request header of W3C Trace Context.
TRACEPARENT_HEADER: Final = "traceparent"


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A request and its reply; belongs to the event loop of shield and handlers.

    Attributes:
        request_id: Sent with the reply as ``request-id``.
        trace: The span of the request.
        parent: The span of the client, if its request names one.
        caller: The holder of its key, once it is admitted.
        peer: Address of the client.
        path: The path of the request, percent-decoded.
        name: Under which the handler finds it.
        request: What the handler got, once Robyn has called it.
        job_id: The job that the handler's log lines name, once the handler has ended.
        gone: Set as soon as the client has left.
        ending: Set when the process must end its streams now.
        over: Set when the handler, and the source of its stream, have ended.
        cut: Cuts the connection of the client.
        under_way_bytes: Of a stream: from its source, and not yet passed on to the client.
    """

    request_id: str
    trace: TraceContext
    parent: TraceContext | None = None
    caller: Caller = UNIDENTIFIED
    peer: str = ""
    path: str = ""
    name: str = ""
    request: Request | None = None
    job_id: str | None = None
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    cut: Callable[[], None] = lambda: None
    under_way_bytes: int = 0
    _handling: asyncio.Task[Any] | None = None
    _stream: asyncio.Task[None] | None = None
    _is_paused: bool = False
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def begin(cls, samples: Callable[[str], bool], peer: str = "") -> Self:
        """Name a request before it is read.

        Args:
            samples: Whether the spans of a trace are exported, by its id.
            peer: Address of the client.
        """
        clear_contextvars()
        trace = new_trace()
        if samples(trace.trace_id):
            trace = replace(trace, flags=trace.flags | SAMPLED)
        exchange = cls(request_id="req_" + uuid7_hex(), trace=trace, peer=peer)
        exchange.bind()
        return exchange

    def read(self, headers: Mapping[str, str]) -> None:
        """Continue the trace that the headers name, if they name one."""
        parent = parse_traceparent(headers.get(TRACEPARENT_HEADER))
        if parent is not None:
            self.trace, self.parent = parent.new_child(), parent
            self.bind()

    def bind(self) -> None:
        """Let the log lines of this task carry the names."""
        bind_contextvars(request_id=self.request_id, trace_id=self.trace.trace_id)
        if self.job_id is not None:
            bind_contextvars(job_id=self.job_id)

    # Called by the handler's side.

    def handle(self) -> None:
        """Note that the current task runs the handler."""
        self._handling = asyncio.current_task()

    def stream(self, task: asyncio.Task[None]) -> None:
        """Note that a task iterates the source of the reply; it is cancelled with the client."""
        self._stream = task

    def put(self, size_bytes: int) -> None:
        """Note that bytes of the stream are on their way to the client."""
        self.under_way_bytes += size_bytes

    async def room(self, window_bytes: int) -> None:
        """Wait until the client takes bytes and fewer than ``window_bytes`` are on their way."""
        while self._is_paused or self.under_way_bytes > window_bytes:
            self._moved.clear()
            await self._moved.wait()

    def end(self) -> None:
        """Note that the handler's side has ended."""
        self.over.set()

    # Called by the shield.

    @property
    def is_handled(self) -> bool:
        """Whether Robyn has called the handler."""
        return self._handling is not None

    def passed(self, size_bytes: int) -> None:
        """Note that bytes of the stream have been passed on to the client."""
        self.under_way_bytes -= size_bytes
        self._moved.set()

    def pause(self, *, is_paused: bool) -> None:
        """Note whether the client takes bytes."""
        self._is_paused = is_paused
        self._moved.set()

    def leave(self) -> None:
        """Set ``gone``, and end the stream."""
        self.gone.set()
        if self._stream is not None:
            # Later, since a task that is cancelled before its first step does not close its source.
            asyncio.get_running_loop().call_soon(self._stream.cancel)

    def cancel(self) -> None:
        """End the handler and its stream."""
        self.leave()
        if self._handling is not None:
            self._handling.cancel()
