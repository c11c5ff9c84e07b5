"""Reduces traces to the figures of a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.client import StreamTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One contender's answers to requests that were sent at once.

    Attributes:
        total_s: From the first request to the last end.
        tokens: Generated tokens of all streams.
        window_s: The time in which all streams decode: from the last first text to the first end.
            0 where one stream ends before another begins.
        decode_per_s: Tokens a second in that window; 0 without one.
        first_p50_s: Median time to the first text of a stream.
        first_last_s: Time to the last stream's first text.
        cached_tokens: Prompt tokens that the contender reports as reused.
        cpu_ms_a_token: CPU time of all its processes, for each token.
    """

    total_s: float
    tokens: int
    window_s: float
    decode_per_s: float
    first_p50_s: float
    first_last_s: float
    cached_tokens: int
    cpu_ms_a_token: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures_of(traces: Sequence[StreamTrace], cpu_s: float) -> Figures:
    """Return the figures of streams that began at once and took ``cpu_s`` CPU seconds."""
    firsts = [trace.first_s for trace in traces]
    tokens = sum(trace.completion_tokens for trace in traces)
    begin = max((trace.tokens[0] for trace in traces if trace.tokens), default=0.0)
    end = min((trace.tokens[-1] for trace in traces if trace.tokens), default=0.0)
    window_s = max(0.0, end - begin)
    decoded = sum(_decoded(trace, begin, end) for trace in traces)
    return Figures(
        total_s=max(trace.done for trace in traces) - min(trace.sent for trace in traces),
        tokens=tokens,
        window_s=window_s,
        decode_per_s=decoded / window_s if window_s else 0.0,
        first_p50_s=statistics.median(firsts),
        first_last_s=max(firsts),
        cached_tokens=sum(trace.cached_tokens for trace in traces),
        cpu_ms_a_token=1000 * cpu_s / max(1, tokens),
    )


def _decoded(trace: StreamTrace, begin: float, end: float) -> float:
    """Return the tokens of a stream in a window; a piece of text may have several tokens."""
    inside = sum(begin < at <= end for at in trace.tokens)
    return inside * trace.completion_tokens / max(1, len(trace.tokens))


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, the least and the most."""
    return statistics.median(values), min(values), max(values)
