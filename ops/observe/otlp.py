"""OTLP over HTTP by the OpenTelemetry SDK, which the extra ``otel`` installs.

Endpoint, headers, timeout, compression and certificates follow the standard environment variables
``OTEL_EXPORTER_OTLP_*``; name and attributes of the service follow ``OTEL_SERVICE_NAME`` and
``OTEL_RESOURCE_ATTRIBUTES``; queue and batches of the export follow ``OTEL_BSP_*``.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Final

from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from domain.log.trace import TraceContext
from ops.observe.logs import Logger
from ops.observe.span import Span, SpanSink

#: Path of the receiver below a base URL.
TRACES_PATH: Final = "/v1/traces"
#: How long the end of the process waits for the export of the last spans, in seconds.
CLOSE_S: Final = 2.0
#: How long it then waits for the end of an interrupted try, in seconds.
INTERRUPT_S: Final = 0.5
_SCOPE: Final = "semantic"
_SERVICE: Final = "semantic"
_SAMPLE_DIGITS: Final = 14


class OtlpSpans(SpanSink):
    """``SpanSink`` on a ``BatchSpanProcessor``, which exports from a thread of its own.

    Args:
        exporter: Sends batches; may block and raise.
        sample_ratio: Part of the new traces whose spans are exported, in [0, 1].
        has_texts: Whether spans may carry texts of prompts and answers.
    """

    is_on = True

    def __init__(
        self,
        exporter: SpanExporter,
        logger: Logger,
        *,
        part: str,
        version: str,
        sample_ratio: float = 1.0,
        has_texts: bool = False,
    ) -> None:
        # ``_Reporter`` reports failures once; the SDK would log each of them.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._logger = logger.bind(component="tracing")
        self.has_texts = has_texts
        # Of the last 56 bits of the id, which are random in every id that the W3C allows.
        self._sampled_below = round(sample_ratio * 16**_SAMPLE_DIGITS)
        self._exporter = _Reporter(exporter, self._logger)
        self._processor = BatchSpanProcessor(self._exporter)
        self._put_lock = threading.Lock()
        self._put = 0
        attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
        is_named = bool(os.environ.get(OTEL_SERVICE_NAME)) or f"{SERVICE_NAME}=" in attributes
        name = {} if is_named else {SERVICE_NAME: _SERVICE}
        self._resource = Resource.create({"service.version": version, "semantic.part": part} | name)
        self._scope = InstrumentationScope(_SCOPE, version)

    def samples(self, trace_id: str) -> bool:
        """Whether the spans of a new trace are exported; every process decides alike."""
        return int(trace_id[-_SAMPLE_DIGITS:], 16) < self._sampled_below

    def put(self, span: Span) -> None:
        """Queue a span; a full queue drops its oldest one."""
        with self._put_lock:
            self._put += 1
        self._processor.on_end(self._readable(span))

    def close(self) -> None:
        """Export what is left, for at most ``CLOSE_S`` seconds."""
        # The SDK's own end waits for 30 s.
        ending = threading.Thread(target=self._processor.shutdown, name="span-end", daemon=True)
        ending.start()
        ending.join(CLOSE_S)
        self._exporter.shutdown()
        ending.join(INTERRUPT_S)
        dropped = self._put - self._exporter.taken
        if dropped:
            self._logger.info("spans_dropped", spans=dropped)

    def _readable(self, span: Span) -> ReadableSpan:
        context = span.context
        failed = otel.Status(otel.StatusCode.ERROR, span.error)
        attributes = {name: value for name, value in span.attributes.items() if value is not None}
        if span.error is not None:
            attributes["error.type"] = span.error
        parent = span.parent_id
        return ReadableSpan(
            name=span.name,
            context=_otel_context(context),
            parent=None if parent is None else _otel_context(context, parent),
            resource=self._resource,
            attributes=attributes,
            links=[otel.Link(_otel_context(link)) for link in span.links],
            kind=otel.SpanKind[span.kind.value],
            status=otel.Status() if span.error is None else failed,
            start_time=span.start_ns,
            end_time=max(span.start_ns, span.end_ns),
            instrumentation_scope=self._scope,
        )


class _Reporter(SpanExporter):
    """Logs one line where the receiver begins to fail, and one where it works again."""

    def __init__(self, exporter: SpanExporter, logger: Logger) -> None:
        self._exporter = exporter
        self._logger = logger
        self._is_failing = False
        #: Spans that the receiver took.
        self.taken = 0
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        why = "the receiver did not take the spans"
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # noqa: BLE001 - tracing must not end with one batch
            result, why = SpanExportResult.FAILURE, repr(error)
        is_taken = result is SpanExportResult.SUCCESS
        if is_taken:
            self.taken += len(spans)
        else:
            self._lost += len(spans)
        if is_taken and self._is_failing:
            self._logger.info("traces_exported_again", spans_dropped=self._lost)
        if not is_taken and not self._is_failing:
            self._logger.warning("traces_not_exported", why=why)
        self._is_failing = not is_taken
        return result

    def shutdown(self) -> None:
        """Interrupt a retry, and send nothing more."""
        self._exporter.shutdown()


def open_exporter(endpoint: str) -> SpanExporter:
    """Return what sends spans to the receiver at a base URL."""
    is_whole = endpoint.endswith(TRACES_PATH)
    url = endpoint if is_whole else endpoint.rstrip("/") + TRACES_PATH
    return OTLPSpanExporter(endpoint=url)


def _otel_context(context: TraceContext, span_id: str | None = None) -> otel.SpanContext:
    return otel.SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(span_id or context.span_id, 16),
        is_remote=False,
        trace_flags=otel.TraceFlags(context.flags),
    )
