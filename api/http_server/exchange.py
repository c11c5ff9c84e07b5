"""One request with its reply, as headers, log lines and spans name it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from structlog.contextvars import bind_contextvars, clear_contextvars

from api.http.caller import UNIDENTIFIED, Caller
from domain.log.trace import SAMPLED, TraceContext, new_trace, parse_traceparent
from ops.clock import uuid7_hex

#: The request header of W3C Trace Context.
TRACEPARENT_HEADER: Final = "traceparent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """The names of a request.

    Attributes:
        request_id: Sent with the reply as ``request-id``.
        trace: The span of the request.
        parent: The span of the client, if its request names one.
        caller: The holder of its key, once it is admitted.
    """

    request_id: str
    trace: TraceContext
    parent: TraceContext | None = None
    caller: Caller = UNIDENTIFIED

    @classmethod
    def begin(cls, samples: Callable[[str], bool]) -> Self:
        """Name a request before it is read.

        Args:
            samples: Whether the spans of a trace are exported, by its id.
        """
        clear_contextvars()
        trace = new_trace()
        if samples(trace.trace_id):
            trace = replace(trace, flags=trace.flags | SAMPLED)
        return cls(request_id="req_" + uuid7_hex(), trace=trace).bind()

    def read(self, headers: Mapping[str, str]) -> Self:
        """Continue the trace that the headers name, if they name one."""
        parent = parse_traceparent(headers.get(TRACEPARENT_HEADER))
        if parent is None:
            return self
        return replace(self, trace=parent.new_child(), parent=parent).bind()

    def of(self, caller: Caller) -> Self:
        """Return the exchange of an admitted request."""
        return replace(self, caller=caller)

    def bind(self) -> Self:
        """Let the log lines of this task carry the names."""
        bind_contextvars(request_id=self.request_id, trace_id=self.trace.trace_id)
        return self
