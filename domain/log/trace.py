"""Trace contexts as W3C Trace Context writes them, and ids that any process can derive.

traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
             version, trace id, span id, flags
"""

from __future__ import annotations

import hashlib
import random
import re
from dataclasses import dataclass, replace
from typing import Final

#: Flag: spans of the trace are exported.
SAMPLED: Final = 1
#: Flag: the trace id is random (Trace Context Level 2).
RANDOM: Final = 2
_TRACE_BITS: Final = 128
_SPAN_BITS: Final = 64
_SPAN_BYTES: Final = _SPAN_BITS // 8
#: A newer version may add fields behind the flags.
_TRACEPARENT: Final = re.compile(
    r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?"
)
_VERSION: Final = "00"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """A span, as other spans and processes refer to it.

    Attributes:
        trace_id: 32 lower-case hex digits, not all zero.
        span_id: 16 lower-case hex digits, not all zero.
        flags: ``SAMPLED`` and ``RANDOM``; others are not passed on.
    """

    trace_id: str
    span_id: str
    flags: int = 0

    def __str__(self) -> str:
        return f"{_VERSION}-{self.trace_id}-{self.span_id}-{self.flags:02x}"

    @property
    def is_sampled(self) -> bool:
        """Whether spans of the trace are exported."""
        return bool(self.flags & SAMPLED)

    def new_child(self) -> TraceContext:
        """Return a new span of the same trace."""
        return replace(self, span_id=_random_hex(_SPAN_BITS))

    def derived(self, *parts: object) -> TraceContext:
        """Return the span of the same trace whose id follows from ``parts``.

        Every process that knows the parts knows the id, so a span can refer to one that another
        process exported, or died before it did.
        """
        return replace(self, span_id=derived_span_id(*parts))


def new_trace(*, sampled: bool = False) -> TraceContext:
    """Return the first span of a new trace."""
    return TraceContext(
        trace_id=_random_hex(_TRACE_BITS),
        span_id=_random_hex(_SPAN_BITS),
        flags=RANDOM | (SAMPLED if sampled else 0),
    )


def parse_traceparent(text: str | None) -> TraceContext | None:
    """Return the span that a ``traceparent`` header names; ``None`` if it is not valid."""
    found = _TRACEPARENT.fullmatch(text.strip(" \t")) if text is not None else None
    if found is None or (found[1] == _VERSION and found[5] is not None):
        return None
    flags = int(found[4], 16) & (SAMPLED | RANDOM)
    return TraceContext(trace_id=found[2], span_id=found[3], flags=flags)


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the trace id of a recorded context."""
    context = parse_traceparent(traceparent)
    return None if context is None else context.trace_id


def derived_span_id(*parts: object) -> str:
    """Return a span id that follows from ``parts``."""
    text = "\n".join(map(str, parts))
    digest = hashlib.sha256(text.encode()).digest()[:_SPAN_BYTES]
    return (int.from_bytes(digest) or 1).to_bytes(_SPAN_BYTES).hex()


def _random_hex(bits: int) -> str:
    return f"{random.getrandbits(bits) or 1:0{bits // 4}x}"
