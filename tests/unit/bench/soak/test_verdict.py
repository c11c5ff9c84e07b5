"""What counts as growth, and what is noise."""

from __future__ import annotations

import math
import random

import pytest

from bench.soak.verdict import drift_of, judged_from, trend_of, trends_of

HOUR_S = 3600.0
SAMPLES = 360


def hour(value: object) -> list[tuple[float, float]]:
    assert callable(value)
    return [(index * 10.0, float(value(index / SAMPLES))) for index in range(SAMPLES)]


@pytest.mark.parametrize(
    ("share", "grows"), [(0.0, False), (0.04, False), (-0.2, False), (0.08, True), (1.0, True)]
)
def test_growth_beyond_the_limit_is_found(share: float, grows: bool) -> None:  # noqa: FBT001 - a case
    trend = trend_of(hour(lambda at: 100 * (1 + share * at)))
    assert trend is not None
    assert trend.grows is grows


def test_noise_and_sawteeth_do_not_grow() -> None:
    rng = random.Random(7)
    noisy = trend_of(hour(lambda _: 100 + rng.gauss(0, 5)))
    swaps = trend_of(hour(lambda at: 100 + 30 * math.fmod(6 * at, 1.0)))
    assert noisy is not None
    assert swaps is not None
    assert not noisy.grows
    assert not swaps.grows


def test_leak_is_found_in_noise() -> None:
    rng = random.Random(7)
    trend = trend_of(hour(lambda at: 100 * (1 + 0.3 * at) + rng.gauss(0, 3)))
    assert trend is not None
    assert trend.grows
    assert 20 < trend.percent_per_hour < 32


def test_growth_in_the_warm_up_does_not_count() -> None:
    samples = [{"t_s": at, "rss": min(100.0, 20 + at / 8), "log, MB": at} for at, _ in hour(abs)]
    trends = trends_of(samples)
    assert judged_from(HOUR_S) == 900
    assert not trends["rss"].grows
    assert trends.keys() == {"rss"}


def test_counters_that_stay_are_flat_and_zeros_are_no_error() -> None:
    trend = trend_of(hour(lambda _: 0))
    assert trend is not None
    assert (trend.level, trend.percent_per_hour, trend.grows) == (0, 0, False)
    assert trend_of([(0.0, 1.0)]) is None


def test_slower_answers_are_a_drift() -> None:
    assert drift_of([(at, 100.0) for at, _ in hour(abs)]) == 1.0
    assert drift_of([(at, 100.0 + at) for at, _ in hour(abs)]) == pytest.approx(2, abs=0.6)
    assert drift_of([]) is None
    assert drift_of([(1.0, 5.0)]) is None
