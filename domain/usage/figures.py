"""Sums and histograms of ended jobs, and their port."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, Protocol

from domain.values import Owner, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFigures:
    """Counts and sums of one hour, model or agent.

    A job is counted when it ends; a job that ends again after a retry is counted again, so no
    figure ever decreases. Durations are in microseconds.

    Attributes:
        completed: Jobs with a complete answer.
        failed: Jobs that ended without an answer.
        cancelled: Jobs that ended on request.
        expired: Jobs that ended at a deadline.
        attempts: Attempts that began.
        failed_attempts: Attempts that ended without an answer; dead workers record none.
        completion_tokens: Of the answers, reasoning included.
        kept_tokens: The part of the prompts in whole blocks that are kept.
        hits: Contexts of agents that were restored.
        ram_tokens: Restored tokens that were in memory.
        disk_tokens: Restored tokens that were read from disk.
        misses_diverged: Saved contexts that the prompt did not continue.
        misses_gone: Saved contexts whose blocks were evicted.
        misses_model_changed: Saved contexts of another model.
        missed_tokens: Saved tokens that were computed again.
        started_jobs: Ended jobs with an attempt: the count of ``queue_us``.
        timed_jobs: Ended jobs with a first token: the count of ``first_token_us``, ``prefill_us``
            and ``decode_us``.
        queue_us: From acceptance to the first attempt.
        restore_us: Of the restored contexts; their count is ``hits``.
        prefill_us: Of prompts, the restored part included.
        first_token_us: From the engine's acceptance of a job to its first token.
        decode_us: From the first token to the last.
        total_us: From acceptance to the end, of all ended jobs.
    """

    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    attempts: int = 0
    failed_attempts: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    kept_tokens: int = 0
    hits: int = 0
    ram_tokens: int = 0
    disk_tokens: int = 0
    misses_diverged: int = 0
    misses_gone: int = 0
    misses_model_changed: int = 0
    missed_tokens: int = 0
    started_jobs: int = 0
    timed_jobs: int = 0
    queue_us: int = 0
    restore_us: int = 0
    prefill_us: int = 0
    first_token_us: int = 0
    decode_us: int = 0
    total_us: int = 0

    @property
    def usage(self) -> Usage:
        """Tokens of the ended jobs."""
        return Usage(**{one.name: getattr(self, one.name) for one in fields(Usage)})

    @property
    def jobs(self) -> int:
        """Jobs that ended."""
        return self.completed + self.failed + self.cancelled + self.expired

    @property
    def misses(self) -> int:
        """Saved contexts that were not reused in full."""
        return self.misses_diverged + self.misses_gone + self.misses_model_changed

    @property
    def cached_ratio(self) -> float:
        """The share of prompt tokens that came from the cache."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def __add__(self, other: UsageFigures) -> UsageFigures:
        """Return both together."""
        return UsageFigures(
            **{name: getattr(self, name) + getattr(other, name) for name in FIGURES}
        )

    def as_mapping(self) -> Mapping[str, int]:
        """Return the figures by name."""
        return {name: getattr(self, name) for name in FIGURES}


#: Names of the figures, in order.
FIGURES: Final = tuple(field.name for field in fields(UsageFigures))


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


class UsageGroup(StrEnum):
    """What the sums of a report are grouped by."""

    HOUR = "hour"
    DAY = "day"
    AGENT = "agent"
    MODEL = "model"


class UsageViews(Protocol):
    """The usage projection. Each method raises ``LogUnavailable``."""

    def totals(self) -> Mapping[str, UsageFigures]:
        """Return the sums since the log began, by model; empty name: no attempt began.

        The cost does not grow with the log, and no figure ever decreases.
        """

    def histograms(self) -> Mapping[tuple[str, Measure], Histogram]:
        """Return the histograms since the log began, by model and measure; same cost."""

    def by_agent(
        self, *, since: str | None = None, until: str | None = None
    ) -> Mapping[tuple[str, str], UsageFigures]:
        """Return sums by model and agent; ``since`` and ``until`` as in ``grouped``."""

    def first_agents(self, limit: int) -> tuple[str, ...]:
        """Return the agents that were seen first, in order; a later agent changes none of them."""

    def grouped(
        self,
        group: UsageGroup,
        *,
        since: str | None = None,
        until: str | None = None,
        owner: Owner | None = None,
    ) -> Mapping[str, UsageFigures]:
        """Return sums by hour, day, agent or model, in order of the names.

        Args:
            group: What to group by; an empty name is a job without an agent or a model.
            since: First hour, e.g. ``2026-11-22T18``.
            until: The hour after the last one.
        """
