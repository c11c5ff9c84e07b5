"""A histogram of durations that one process measures."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

#: Key of the bucket without an upper bound, and of the sum of all durations.
INFINITE = "+Inf"
SUM = "sum"


class DurationHistogram:
    """Counts durations by buckets; any thread may use it.

    Args:
        bounds_s: Upper bounds of the buckets in seconds, inclusive and ascending.
    """

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = tuple(bounds_s)
        self._lock = threading.Lock()
        self._counts = [0] * (len(self._bounds_s) + 1)
        self._sum_s = 0.0

    def record(self, seconds: float) -> None:
        """Count a duration."""
        bucket = bisect_left(self._bounds_s, seconds)
        with self._lock:
            self._counts[bucket] += 1
            self._sum_s += seconds

    def read(self) -> Mapping[str, float]:
        """Return the cumulative counts by upper bound, and the sum; none of them decreases."""
        with self._lock:
            counts, sum_s = tuple(self._counts), self._sum_s
        return cumulated(self._bounds_s, counts, sum_s)


def cumulated(
    bounds_s: Sequence[float], counts: Sequence[int], sum_s: float
) -> Mapping[str, float]:
    """Return counts per bucket as cumulative counts by upper bound, and the sum.

    Args:
        bounds_s: Upper bounds in seconds, without infinity.
        counts: Durations per bucket; the last bucket has no bound.
        sum_s: Sum of the durations in seconds.
    """
    names = (*(str(float(bound)) for bound in bounds_s), INFINITE)
    totals = accumulate(counts)
    return {**dict(zip(names, map(float, totals), strict=True)), SUM: sum_s}
