"""Spans that have ended, as plain values, and what receives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from domain.log.trace import TraceContext

#: What an attribute of a span may be.
AttributeValue = str | bool | int | float | tuple[str, ...]


class SpanKind(StrEnum):
    """The role of a span, by its OpenTelemetry name."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A span that has ended.

    Attributes:
        name: Low-cardinality name.
        parent_id: Id of its parent; ``None`` for the first span of a trace.
        start_ns: Nanoseconds since the epoch.
        end_ns: The same.
        attributes: Values by name; those that are ``None`` are left out.
        links: Spans of other attempts or traces that it belongs to.
        error: Code of the failure, if it failed.
    """

    name: str
    context: TraceContext
    parent_id: str | None
    start_ns: int
    end_ns: int
    kind: SpanKind = SpanKind.INTERNAL
    attributes: Mapping[str, AttributeValue | None] = field(default_factory=dict)
    links: Sequence[TraceContext] = ()
    error: str | None = None


class SpanSink:
    """Receives spans from any thread; this one drops them, as tracing is off.

    Attributes:
        is_on: Whether spans are exported at all.
        has_texts: Whether spans may carry texts of prompts and answers.
    """

    is_on = False
    has_texts = False

    def samples(self, trace_id: str) -> bool:
        """Whether the spans of a new trace are exported."""
        del trace_id
        return False

    def put(self, span: Span) -> None:
        """Export a span later; never blocks and never raises."""

    def close(self) -> None:
        """Export what is left for a moment."""
