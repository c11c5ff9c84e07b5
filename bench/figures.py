"""Reduces traces to the figures of a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.client import StreamTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One contender at one number of streams, in one round."""

    tokens_per_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    cpu_s: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures_of(traces: Sequence[StreamTrace], cpu_s: float) -> Figures:
    """Return the figures of one burst of streams.

    Tokens per second are all generated tokens over the time from the first request to the last
    end, prefill included.
    """
    first = [1000 * (trace.tokens[0] - trace.sent) for trace in traces]
    gaps = [
        1000 * (later - earlier)
        for trace in traces
        for earlier, later in zip(trace.tokens, trace.tokens[1:], strict=False)
    ]
    wall = max(trace.done for trace in traces) - min(trace.sent for trace in traces)
    return Figures(
        tokens_per_s=sum(trace.completion_tokens for trace in traces) / wall,
        ttft_p50_ms=percentile(first, 0.5),
        ttft_p95_ms=percentile(first, 0.95),
        gap_p50_ms=percentile(gaps, 0.5),
        gap_p99_ms=percentile(gaps, 0.99),
        cpu_s=cpu_s,
    )


def median_of(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure over the rounds."""
    return Figures(
        tokens_per_s=statistics.median(one.tokens_per_s for one in rounds),
        ttft_p50_ms=statistics.median(one.ttft_p50_ms for one in rounds),
        ttft_p95_ms=statistics.median(one.ttft_p95_ms for one in rounds),
        gap_p50_ms=statistics.median(one.gap_p50_ms for one in rounds),
        gap_p99_ms=statistics.median(one.gap_p99_ms for one in rounds),
        cpu_s=statistics.median(one.cpu_s for one in rounds),
    )
