"""OTLP over HTTP by the OpenTelemetry SDK, which the extra ``otel`` installs.

Endpoint, headers, timeout, compression and certificates follow the standard environment variables
``OTEL_EXPORTER_OTLP_*``; name and attributes of the service follow ``OTEL_SERVICE_NAME`` and
``OTEL_RESOURCE_ATTRIBUTES``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Final

from opentelemetry import trace as otel
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.environment_variables import OTEL_SERVICE_NAME
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from domain.log.trace import TraceContext
from ops.tracing.span import Span

#: Path of the receiver below a base URL.
TRACES_PATH: Final = "/v1/traces"
_SCOPE: Final = "semantic"
_SERVICE: Final = "semantic"


class OtlpSender:
    """Sends spans to a receiver; used by one thread.

    Args:
        endpoint: Base URL of the receiver; ``None`` for that of the environment, or port 4318 of
            this machine.
        part: The process: ``api`` or ``worker``.
        version: Of this software.
    """

    def __init__(self, endpoint: str | None, *, part: str, version: str) -> None:
        # ``SpanQueue`` reports failures once; the SDK would log each of them.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        self._exporter = OTLPSpanExporter(endpoint=_traces_url(endpoint))
        name = {} if os.environ.get(OTEL_SERVICE_NAME) else {SERVICE_NAME: _SERVICE}
        self._resource = Resource.create(
            {"service.version": version, "semantic.part": part} | _unless_set(name)
        )
        self._scope = InstrumentationScope(_SCOPE, version)

    def send(self, spans: Sequence[Span]) -> bool:
        """Send spans; return whether the receiver took them. Blocks."""
        exported = self._exporter.export([self._readable(span) for span in spans])
        return exported is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Interrupt a retry, and send nothing more."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the SDK's

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


def _otel_context(context: TraceContext, span_id: str | None = None) -> otel.SpanContext:
    return otel.SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(span_id or context.span_id, 16),
        is_remote=False,
        trace_flags=otel.TraceFlags(context.flags),
    )


def _traces_url(endpoint: str | None) -> str | None:
    if endpoint is None or endpoint.endswith(TRACES_PATH):
        return endpoint
    return endpoint.rstrip("/") + TRACES_PATH


def _unless_set(name: dict[str, str]) -> dict[str, str]:
    """Return the name of the service, unless the environment's attributes have one."""
    given = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {} if f"{SERVICE_NAME}=" in given else name
