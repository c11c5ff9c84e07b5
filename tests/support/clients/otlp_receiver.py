"""An OTLP/HTTP receiver on a loopback port that decodes the spans it is sent."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.support.polling import scaled

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedSpan:
    """One span, with ids in hex as in ``traceparent``."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Any]
    links: tuple[tuple[str, str], ...]
    error: str | None
    resource: Mapping[str, Any]

    @property
    def part(self) -> str:
        return str(self.resource["semantic.part"])


class OtlpReceiver:
    """Collects spans; ``status`` is what it answers."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.status = 200
        self.requests = 0
        self.spans: list[ReceivedSpan] = []
        self._changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take(self, body: bytes) -> int:
        with self._changed:
            self.requests += 1
            if self.status == 200:
                self.spans += _decoded(body)
            self._changed.notify_all()
            return self.status

    def wait_for(
        self, condition: Callable[[list[ReceivedSpan]], bool], timeout_s: float = PATIENCE_S
    ) -> list[ReceivedSpan]:
        """Wait until the spans so far meet a condition, and return them."""
        with self._changed:
            met = self._changed.wait_for(lambda: condition(self.spans), scaled(timeout_s))
            assert met, [(span.name, span.trace_id) for span in self.spans]
            return list(self.spans)

    def wait_for_requests(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests >= count, scaled(PATIENCE_S))

    def of(self, trace_id: str) -> list[ReceivedSpan]:
        """Return the spans of a trace by their start."""
        found = [span for span in self.spans if span.trace_id == trace_id]
        return sorted(found, key=lambda span: (span.start_ns, -span.end_ns))


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Listen on a free loopback port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status = receiver.take(body) if self.path == "/v1/traces" else 404
            self.send_response(status)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
            del format, args

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = OtlpReceiver(server.server_port)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _decoded(body: bytes) -> Iterator[ReceivedSpan]:
    request = ExportTraceServiceRequest()
    request.ParseFromString(body)
    for resource_spans in request.resource_spans:
        resource = _values(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield _received(span, resource)


def _received(span: Span, resource: Mapping[str, Any]) -> ReceivedSpan:
    is_error = span.status.code == Status.STATUS_CODE_ERROR
    return ReceivedSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        error=span.status.message if is_error else None,
        resource=resource,
    )


def _values(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in _each(pairs)}


def _each(pairs: Any) -> Iterator[KeyValue]:
    yield from pairs


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(one) for one in value.array_value.values]
    return None if kind is None else getattr(value, kind)
