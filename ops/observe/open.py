"""Opens the export of spans as the settings ask."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Final

from ops.observe.logs import Logger
from ops.observe.span import SpanSink
from ops.settings.service import TracingSettings

#: The standard variable that turns every OpenTelemetry SDK off.
DISABLED_ENV: Final = "OTEL_SDK_DISABLED"
#: The standard variable of the part of the requests without a ``traceparent`` that are exported.
SAMPLE_RATIO_ENV: Final = "OTEL_TRACES_SAMPLER_ARG"


def open_spans(settings: TracingSettings, *, part: str, logger: Logger) -> SpanSink:
    """Return the sink for the spans of a process; close it."""
    if settings.endpoint is None or os.environ.get(DISABLED_ENV, "").lower() == "true":
        return SpanSink()
    from ops.observe.otlp import OtlpSpans, open_exporter  # noqa: PLC0415 - an extra; 0.1 s

    return OtlpSpans(
        open_exporter(settings.endpoint),
        logger,
        part=part,
        version=version("semantic"),
        sample_ratio=sample_ratio(),
        has_texts=settings.texts,
    )


def sample_ratio() -> float:
    """Return the ratio of the standard variable; 1 without a valid one."""
    try:
        ratio = float(os.environ.get(SAMPLE_RATIO_ENV, "1"))
    except ValueError:
        return 1.0
    return ratio if 0 <= ratio <= 1 else 1.0
