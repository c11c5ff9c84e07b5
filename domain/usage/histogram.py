"""Histograms of durations with fixed bounds, which suit the latencies of language models.

The stored buckets are numbers of bounds: after a change of the bounds the projections must be
rebuilt, see ``PROJECTIONS_VERSION``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Measure(StrEnum):
    """A duration of which there is a histogram; ``UsageFigures`` describes each.

    ``inter_token`` is the mean duration of a token of one job, the first token excluded.
    """

    QUEUE = "queue"
    RESTORE = "restore"
    PREFILL = "prefill"
    FIRST_TOKEN = "first_token"  # noqa: S105 - a duration, not a secret
    DECODE = "decode"
    TOTAL = "total"
    INTER_TOKEN = "inter_token"  # noqa: S105 - a duration, not a secret


# In milliseconds. From a cached prompt (5 ms) to a long one that is computed (10 minutes).
_PHASE_MS = (
    *(5, 10, 25, 50, 100, 250, 500),
    *(1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000),
)
_WHOLE_MS = (*_PHASE_MS[3:], 1_800_000, 3_600_000)
_RESTORE_MS = (1, 2.5, *_PHASE_MS[:10])
_TOKEN_MS = (*(1, 2.5, 5, 7.5, 10, 15, 20, 30, 40, 50, 75), *(100, 150, 200, 300, 500, 1_000))


def _in_us(bounds_ms: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(round(bound * 1000) for bound in bounds_ms)


#: Upper bounds of the buckets in microseconds, inclusive; the last bucket has none.
BOUNDS_US: Final[Mapping[Measure, tuple[int, ...]]] = {
    Measure.QUEUE: _in_us(_PHASE_MS),
    Measure.RESTORE: _in_us(_RESTORE_MS),
    Measure.PREFILL: _in_us(_PHASE_MS),
    Measure.FIRST_TOKEN: _in_us(_PHASE_MS),
    Measure.DECODE: _in_us(_WHOLE_MS),
    Measure.TOTAL: _in_us(_WHOLE_MS),
    Measure.INTER_TOKEN: _in_us(_TOKEN_MS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Durations of one measure.

    Attributes:
        counts: Durations per bucket of ``BOUNDS_US``, not cumulated, and those above all bounds.
        sum_us: Sum of the durations in microseconds.
    """

    counts: tuple[int, ...]
    sum_us: int = 0

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)


def bucket_of(measure: Measure, duration_us: int) -> int:
    """Return the number of the bucket of a duration, from 0."""
    return bisect_left(BOUNDS_US[measure], duration_us)


def histogram_of(measure: Measure, buckets: Mapping[int, tuple[int, int]]) -> Histogram:
    """Return the histogram of its filled buckets: count and sum in microseconds by number."""
    return Histogram(
        counts=tuple(buckets.get(one, (0, 0))[0] for one in range(len(BOUNDS_US[measure]) + 1)),
        sum_us=sum(sum_us for _, sum_us in buckets.values()),
    )
