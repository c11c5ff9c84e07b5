"""Reports and rates from the sums of usage."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from domain.engine.rates import RatePoint, Rates
from domain.usage.figures import FIGURES, Measure, UsageFigures, UsageGroup, UsageViews
from domain.usage.fold import HOUR_CHARACTERS
from domain.values import Owner

_US: Final = "_us"
#: Figures that a row has as they are; the sums of durations become means.
COUNTS: Final = tuple(name for name in FIGURES if not name.endswith(_US))
#: The figure that counts the durations of a sum.
_COUNT_OF: Final = {
    Measure.QUEUE: "started_jobs",
    Measure.RESTORE: "hits",
    Measure.PREFILL: "timed_jobs",
    Measure.FIRST_TOKEN: "timed_jobs",
    Measure.DECODE: "timed_jobs",
    Measure.TOTAL: "jobs",
}


def usage_row(name: str, figures: UsageFigures) -> dict[str, Any]:
    """Return counts by name, the mean durations in milliseconds, and rates.

    An empty name is a job without an agent or a model.
    """
    decode_s = figures.decode_us / 1_000_000
    # The decode time begins with the first token of a job.
    decoded = max(figures.completion_tokens - figures.timed_jobs, 0)
    return {
        "name": name,
        "jobs": figures.jobs,
        **{name: getattr(figures, name) for name in COUNTS},
        "cached_ratio": round(figures.cached_ratio, 4),
        "mean_ms": {measure.value: _mean_ms(figures, measure) for measure in _COUNT_OF},
        "decode_tokens_per_s": (round(decoded / decode_s, 2) if decode_s else None),
    }


def report_usage(
    views: UsageViews,
    group: UsageGroup,
    *,
    since: str | None,
    limit: int,
    owner: Owner | None = None,
) -> dict[str, Any]:
    """Return the sums since an instant: rows, and the total, also of those beyond the limit.

    Args:
        since: RFC 3339 instant, of which the whole hour counts; ``None`` for the whole log.
        limit: Most rows: the latest hours or days, or the agents or models with the most tokens.

    Raises:
        LogUnavailable: The log cannot be read.
    """
    hour = None if since is None else since[:HOUR_CHARACTERS]
    sums = views.grouped(group, since=hour, owner=owner)
    rows = [usage_row(name, figures) for name, figures in sums.items()]
    if group in {UsageGroup.HOUR, UsageGroup.DAY}:
        shown = rows[-limit:]
    else:
        shown = sorted(rows, key=lambda row: (-_tokens(row), row["name"]))[:limit]
    return {
        "object": "usage",
        "by": group.value,
        "since": None if hour is None else f"{hour}:00:00Z",
        "data": shown,
        "total": usage_row("total", sum(sums.values(), UsageFigures())),
        "has_more": len(rows) > limit,
    }


def _tokens(row: Mapping[str, int]) -> int:
    return row["prompt_tokens"] + row["completion_tokens"]


def _mean_ms(figures: UsageFigures, measure: Measure) -> float | None:
    count: int = getattr(figures, _COUNT_OF[measure])
    sum_us: int = getattr(figures, f"{measure.value}{_US}")
    return round(sum_us / count / 1000, 3) if count else None


HOUR_S: Final = 3600


def hour_name(at_s: int) -> str:
    """Return the hour of an instant in seconds since 1970, as the sums name it."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H")


def rates_of_hour(sums: UsageFigures, at_s: int, passed_s: int) -> RatePoint:
    """Return the rates of an hour; tokens belong to the hour in which their job ended.

    Args:
        at_s: Its begin, in seconds since 1970.
        passed_s: Seconds since its begin.
    """
    seconds = max(1, min(passed_s, HOUR_S))
    timed, prompt = sums.timed_jobs, sums.prompt_tokens
    queued_us = sums.queue_us / sums.started_jobs if sums.started_jobs else 0.0
    rates = Rates(
        tokens_per_s=sums.completion_tokens / seconds,
        prompt_tokens_per_s=max(0, prompt - sums.cached_tokens) / seconds,
        first_token_ms=(queued_us + sums.first_token_us / timed) / 1000 if timed else None,
        cached_share=sums.cached_tokens / prompt if prompt else None,
    )
    return RatePoint(at_s=at_s, rates=rates)
