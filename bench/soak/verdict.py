"""Whether a series grows: the slope after the warm-up, beside its noise. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

#: Growth that is no leak, as a share of the level for each hour.
GROWTH_PER_HOUR_MAX: Final = 0.05
#: Share of the run that is warm-up, and the least and most of it in seconds.
WARM_UP: Final = 0.25
WARM_UP_S_MAX: Final = 900.0
#: The last part of the run may be this much slower than the first one.
DRIFT_MAX: Final = 1.5
#: A series needs this many samples to be judged.
SAMPLES_MIN: Final = 8
#: Growth that is no leak either, in units of the series (MB or a number): caches and pools that
#: still fill show in a run shorter than ``SHORT_S``, as a nightly one is.
FLOOR: Final = 1.0
FLOOR_SHORT: Final = 10.0
SHORT_S: Final = 1200.0
#: Samples of which all pairs are compared; longer series are thinned.
PAIRED_MAX: Final = 200
#: Series that follow the work done and have their own limits.
UNJUDGED: Final = ("log, MB", "worker pid", "t_s", "memory_used_bytes live, MB")
_HOUR_S: Final = 3600.0
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """How a series develops after the warm-up.

    Attributes:
        level: Its median.
        last: The median of its last tenth.
        percent_per_hour: Its slope, as percent of the level.
        noise_percent: Twice the median distance from the line, as percent of the level.
        grows: Whether it grows beyond the limit and its noise.
    """

    level: float
    last: float
    percent_per_hour: float
    noise_percent: float
    grows: bool


#: Of a table of trends.
TREND_HEAD: Final = ("series", ">level", ">last", ">% an hour", ">noise, %", "grows")


def trend_rows(trends: Mapping[str, Trend]) -> list[tuple[str, ...]]:
    """Return a row of the table for each series."""
    return [
        (
            name,
            f"{one.level:,.1f}",
            f"{one.last:,.1f}",
            f"{one.percent_per_hour:+.1f}",
            f"{one.noise_percent:.1f}",
            "**yes**" if one.grows else "",
        )
        for name, one in trends.items()
    ]


def judged_from(duration_s: float) -> float:
    """Return the seconds after which the warm-up of a run is over."""
    return min(WARM_UP_S_MAX, WARM_UP * duration_s)


def trend_of(points: Points) -> Trend | None:
    """Return the trend of a series, ``None`` with too few points.

    The slope is the median of the slopes of all pairs (Theil and Sen): single peaks do not count.
    """
    step = max(1, len(points) // PAIRED_MAX)
    kept = points[::step]
    if len(kept) < SAMPLES_MIN:
        return None
    slope = statistics.median(
        (y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(kept, 2) if x2 > x1
    )
    level = statistics.median(y for _, y in kept)
    base = statistics.median(y - slope * x for x, y in kept)
    off = statistics.median(abs(y - slope * x - base) for x, y in kept)
    share = 1 / level if level else 0.0
    span_s = kept[-1][0] - kept[0][0]
    floor = FLOOR_SHORT if span_s < SHORT_S else FLOOR
    allowed = max(GROWTH_PER_HOUR_MAX * span_s / _HOUR_S, 2 * off * share, floor * share)
    tail = kept[-max(1, len(kept) // 10) :]
    return Trend(
        level=round(level, 3),
        last=round(statistics.median(y for _, y in tail), 3),
        percent_per_hour=round(100 * slope * share * _HOUR_S, 2),
        noise_percent=round(200 * off * share, 2),
        grows=slope * span_s * share > allowed,
    )


def trends_of(samples: Sequence[Mapping[str, float]]) -> dict[str, Trend]:
    """Return the trend of each series that is judged."""
    warm_s = judged_from(samples[-1]["t_s"]) if samples else 0.0
    names = dict.fromkeys(name for sample in samples for name in sample)
    found = {}
    for name in names:
        points = [(one["t_s"], one[name]) for one in samples if name in one and one["t_s"] > warm_s]
        trend = None if name in UNJUDGED else trend_of(points)
        if trend is not None:
            found[name] = trend
    return found


def drift_of(first_ms: Points) -> float | None:
    """Return the median latency of the last third over that of the first, after the warm-up."""
    if not first_ms:
        return None
    end_s = first_ms[-1][0]
    begin_s = judged_from(end_s)
    third_s = (end_s - begin_s) / 3
    early = [ms for at_s, ms in first_ms if begin_s <= at_s < begin_s + third_s]
    late = [ms for at_s, ms in first_ms if at_s >= end_s - third_s]
    if min(len(early), len(late)) < SAMPLES_MIN:
        return None
    return round(statistics.median(late) / statistics.median(early), 3)
