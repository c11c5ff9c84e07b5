"""The bounds of the histograms, which stored buckets refer to, and their counts."""

from __future__ import annotations

import pytest

from domain.usage.figures import BOUNDS_US, Histogram, Measure, bucket_of, histogram_of

PHASE_MS = (
    *(5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 60_000),
    *(120_000, 300_000, 600_000),
)
WHOLE_MS = (*PHASE_MS[3:], 1_800_000, 3_600_000)


@pytest.mark.parametrize(
    ("measure", "bounds_ms"),
    [
        (Measure.QUEUE, PHASE_MS),
        (Measure.RESTORE, (1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)),
        (Measure.PREFILL, PHASE_MS),
        (Measure.FIRST_TOKEN, PHASE_MS),
        (Measure.DECODE, WHOLE_MS),
        (Measure.TOTAL, WHOLE_MS),
        (
            Measure.INTER_TOKEN,
            (1, 2.5, 5, 7.5, 10, 15, 20, 30, 40, 50, 75, 100, 150, 200, 300, 500, 1_000),
        ),
    ],
)
def test_the_bounds_of_stored_buckets_stay_as_they_are(
    measure: Measure, bounds_ms: tuple[float, ...]
) -> None:
    assert BOUNDS_US[measure] == tuple(int(bound * 1000) for bound in bounds_ms)


@pytest.mark.parametrize(
    ("measure", "duration_us", "bucket"),
    [
        (Measure.RESTORE, 0, 0),
        (Measure.RESTORE, 1_000, 0),
        (Measure.RESTORE, 1_001, 1),
        (Measure.RESTORE, 2_500, 1),
        (Measure.RESTORE, 2_501, 2),
        (Measure.RESTORE, 5_000_000, 11),
        (Measure.RESTORE, 5_000_001, 12),
        (Measure.QUEUE, 1_001, 0),
        (Measure.TOTAL, 5_001, 0),
    ],
)
def test_the_upper_bound_of_a_bucket_belongs_to_it(
    measure: Measure, duration_us: int, bucket: int
) -> None:
    assert bucket_of(measure, duration_us) == bucket


def test_a_histogram_has_a_count_for_each_bucket_and_the_sum_of_all() -> None:
    found = histogram_of(Measure.RESTORE, {0: (3, 1_500), 2: (1, 4_000), 12: (2, 14_000_000)})
    assert found == Histogram(counts=(3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2), sum_us=14_005_500)
    assert found.count == 6


@pytest.mark.parametrize("measure", Measure)
def test_a_histogram_without_durations_has_all_buckets_empty(measure: Measure) -> None:
    found = histogram_of(measure, {})
    assert found.counts == (0,) * (len(BOUNDS_US[measure]) + 1)
    assert (found.count, found.sum_us) == (0, 0)
