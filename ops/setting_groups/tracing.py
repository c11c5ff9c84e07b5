"""Settings of the export of spans."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Self

from pydantic import Field, model_validator

from ops.setting_groups.group import SettingGroup

#: A module of each package of the extra ``otel``.
_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter")


class TracingSettings(SettingGroup):
    """Spans of requests and attempts, for an OpenTelemetry receiver."""

    endpoint: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="base URL of the OTLP/HTTP receiver that gets the spans, as"
        " http://localhost:4318; needs the extra otel; default: no spans",
    )
    texts: bool = Field(default=False, description="spans also carry prompts and answers")

    @model_validator(mode="after")
    def _have_the_extra(self) -> Self:
        if self.endpoint is not None and not all(map(_is_installed, _NEEDED)):
            message = (
                "tracing.endpoint needs the extra otel: pip install opentelemetry-sdk"
                " opentelemetry-exporter-otlp-proto-http"
            )
            raise ValueError(message)
        return self


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False
