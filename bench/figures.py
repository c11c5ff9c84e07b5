"""Reduces traces to the figures of a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, fields

from bench.client import StreamTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One contender at one number of streams, in one round.

    Attributes:
        tokens_per_s: All tokens over the time from the first request to the last end.
        decode_per_s: Tokens after the first of each stream, over the time from the first text of
            the burst to its end.
        ttft_p50_ms: Median time to the first text of a stream.
        gap_p50_ms: Median time between two texts of a stream.
        cpu_ms_a_token: CPU time of all processes of the contender, for each token.
    """

    tokens_per_s: float
    decode_per_s: float
    ttft_p50_ms: float
    ttft_p95_ms: float
    gap_p50_ms: float
    gap_p99_ms: float
    cpu_ms_a_token: float


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def figures_of(traces: Sequence[StreamTrace], cpu_s: float) -> Figures:
    """Return the figures of one burst of streams that took ``cpu_s`` CPU seconds."""
    first = [1000 * (trace.tokens[0] - trace.sent) for trace in traces]
    gaps = [
        1000 * (later - earlier)
        for trace in traces
        for earlier, later in zip(trace.tokens, trace.tokens[1:], strict=False)
    ]
    end = max(trace.done for trace in traces)
    tokens = sum(trace.completion_tokens for trace in traces)
    return Figures(
        tokens_per_s=tokens / (end - min(trace.sent for trace in traces)),
        decode_per_s=(tokens - len(traces)) / (end - min(trace.tokens[0] for trace in traces)),
        ttft_p50_ms=percentile(first, 0.5),
        ttft_p95_ms=percentile(first, 0.95),
        gap_p50_ms=percentile(gaps, 0.5),
        gap_p99_ms=percentile(gaps, 0.99),
        cpu_ms_a_token=1000 * cpu_s / tokens,
    )


def median_of(rounds: Sequence[Figures]) -> Figures:
    """Return the median of each figure over the rounds."""
    return Figures(
        **{
            one.name: statistics.median(getattr(figures, one.name) for figures in rounds)
            for one in fields(Figures)
        }
    )
