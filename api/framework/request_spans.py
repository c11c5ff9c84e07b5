"""The spans of a request: the request itself, the submission of its job, and the delivery."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from api.http.messages import Request, RequestMarks
from api.http_server.exchange import Exchange
from domain.log.trace import TraceContext, parse_traceparent
from ops.observe.span import AttributeValue, Span, SpanKind, SpanSink

#: Requests of these methods have spans; others only if their client sends a ``traceparent``, so
#: that pages and commands that poll fill no receiver.
TRACED_METHODS: Final = frozenset({"POST", "PUT", "PATCH", "DELETE"})
#: Statuses from here on are errors of the server.
_SERVER_ERROR: Final = 500
_NS_PER_S: Final = 1e9


class RequestSpans:
    """Exports the spans of requests."""

    def __init__(self, sink: SpanSink) -> None:
        self._sink = sink

    def export(self, exchange: Exchange, status: int) -> None:
        """Export the spans of a request that has ended just now."""
        request = exchange.request
        if request is None or not self._sink.is_on or not is_traced(exchange, request.method):
            return
        for span in spans_of_request(request, exchange, status=status, end_ns=time.time_ns()):
            self._sink.put(span)


def is_traced(exchange: Exchange, method: str) -> bool:
    """Whether a request gets spans, if its trace is sampled."""
    return exchange.trace.is_sampled and (method in TRACED_METHODS or exchange.parent is not None)


def spans_of_request(
    request: Request, exchange: Exchange, *, status: int, end_ns: int
) -> Iterator[Span]:
    """Yield the spans of a request that has a route.

    Args:
        request: With the marks that its handler has left.
        end_ns: When its last byte was written, or its client had left.
    """
    marks = request.marks
    if marks.route is None:
        return  # its path may be any text
    yield _request(request, exchange, status=status, end_ns=end_ns)
    if marks.accepted_ns is not None:
        yield _submit(marks, exchange.trace)
        if marks.output_ns is not None:
            yield Span(
                name="deliver",
                context=exchange.trace.derived(request.id, "deliver"),
                parent_id=exchange.trace.span_id,
                start_ns=marks.output_ns,
                end_ns=end_ns,
            )


def _request(request: Request, exchange: Exchange, *, status: int, end_ns: int) -> Span:
    marks, parent = request.marks, exchange.parent
    first_s = None
    if marks.output_ns is not None:
        first_s = (marks.output_ns - marks.began_ns) / _NS_PER_S
    attributes: dict[str, AttributeValue | None] = {
        "http.request.method": request.method,
        "http.response.status_code": status,
        "http.route": marks.route,
        "url.path": request.path,
        "url.scheme": "http",
        "user_agent.original": request.headers.get("user-agent"),
        "semantic.request.id": request.id,
        "semantic.job.id": ", ".join(marks.jobs) or None,
        "semantic.client.gone": request.gone.is_set() or None,
        "gen_ai.response.time_to_first_chunk": first_s,
    }
    return Span(
        name=f"{request.method} {marks.route}",
        context=exchange.trace,
        parent_id=None if parent is None else parent.span_id,
        start_ns=marks.began_ns,
        end_ns=end_ns,
        kind=SpanKind.SERVER,
        attributes=attributes,
        links=_joined(marks),
        error=str(status) if status >= _SERVER_ERROR else None,
    )


def _submit(marks: RequestMarks, trace: TraceContext) -> Span:
    joined = ", ".join(dict.fromkeys(marks.attached)) or None
    return Span(
        name="submit",
        context=trace.derived(*marks.jobs, "submit"),
        parent_id=trace.span_id,
        start_ns=marks.began_ns,
        end_ns=marks.accepted_ns or marks.began_ns,
        attributes={"semantic.job.id": ", ".join(marks.jobs), "semantic.attached": joined},
        links=_joined(marks),
    )


def _joined(marks: RequestMarks) -> list[TraceContext]:
    contexts = (parse_traceparent(trace) for trace in marks.joined)
    return [context for context in contexts if context is not None]
