"""The rates of an hour, from its sums."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from domain.engine.rates import RatePoint, Rates
from domain.usage.figures import UsageFigures

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
