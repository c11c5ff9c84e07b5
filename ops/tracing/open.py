"""Opens the export of spans as the settings ask."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Final

from ops.logs import Logger
from ops.setting_groups.tracing import TracingSettings
from ops.tracing.span import NoSpans, SpanSink

#: The standard variable that turns every OpenTelemetry SDK off.
DISABLED_ENV: Final = "OTEL_SDK_DISABLED"


def open_spans(settings: TracingSettings, *, part: str, logger: Logger) -> SpanSink:
    """Return the sink for the spans of a process; close it.

    Args:
        settings: Whether and where spans are exported.
        part: The process: ``api`` or ``worker``.
        logger: Records a receiver that fails.
    """
    if not settings.enabled or os.environ.get(DISABLED_ENV, "").lower() == "true":
        return NoSpans()
    from ops.tracing.otlp import OtlpSpans, open_exporter  # noqa: PLC0415 - an extra; 0.1 s

    return OtlpSpans(
        open_exporter(settings.endpoint),
        logger,
        part=part,
        version=version("semantic"),
        sample_ratio=settings.sample_ratio,
        has_texts=settings.texts,
    )
