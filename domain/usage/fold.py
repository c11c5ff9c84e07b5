"""The usage projection: what each event adds to the sums and histograms. Pure.

Sums have no state of their own: an event, and the row of its job before and after it, determine
what is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from domain.events.cache import AgentCacheMissed, AgentCacheRestored
from domain.events.job import (
    AttemptFailed,
    AttemptStarted,
    JobCancelled,
    JobCompleted,
    JobExpired,
    JobFailed,
)
from domain.job.state import Job
from domain.log.record import AGENT_STREAM, RecordedEvent
from domain.usage.figures import Measure, UsageFigures
from domain.values import Usage

#: Longer durations, which only a clock that was set can cause, are counted as this one (100 days).
DURATION_MAX_US: Final = 100 * 24 * 3600 * 1_000_000
#: Length of an RFC 3339 instant up to its hour, and up to its day.
HOUR_CHARACTERS: Final = 13
DAY_CHARACTERS: Final = 10
#: Types of the events of an agent's stream that name a job and are counted.
CACHE_TYPES: Final = frozenset({AgentCacheRestored.__name__, AgentCacheMissed.__name__})

_COUNTED: Final = frozenset(
    one.__name__
    for one in (AttemptStarted, AttemptFailed, JobCompleted, JobFailed, JobCancelled, JobExpired)
)
_MISSES: Final = {
    "diverged": "misses_diverged",
    "gone": "misses_gone",
    "model_changed": "misses_model_changed",
}


class UsageKey(NamedTuple):
    """What the sums are kept by.

    Attributes:
        hour: UTC hour of the event, e.g. ``2026-11-22T18``.
        model: Id of the model that answered; empty if no attempt began.
        agent: The agent; empty if the job has none.
        owner: The API key of the job; empty if it has none.
    """

    hour: str
    model: str
    agent: str
    owner: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageChange:
    """What an event adds.

    Attributes:
        durations: Durations in microseconds, for the histograms of the model.
    """

    key: UsageKey
    figures: UsageFigures
    durations: tuple[tuple[Measure, int], ...] = ()


def usage_of(recorded: RecordedEvent, view: Job | None) -> UsageChange | None:
    """Return what an event adds to the sums; ``None`` if it is not counted.

    Args:
        view: The job of the event after it; for an event of ``CACHE_TYPES`` the job that it names.
            ``None`` if that job is only in an archive.
    """
    if recorded.type in CACHE_TYPES:
        agent = recorded.stream.removeprefix(AGENT_STREAM)
        model = view.answered_by if view is not None else None
        figures, durations = _of_cache(recorded.type, recorded.data)
    elif view is not None and recorded.type in _COUNTED:
        agent, model = view.submitted.agent or "", view.answered_by
        figures, durations = _of_job(recorded, view)
    else:
        return None
    owner = (view.submitted.owner if view is not None else None) or ""
    key = UsageKey(recorded.recorded_at[:HOUR_CHARACTERS], model or "", agent, owner)
    return UsageChange(key=key, figures=figures, durations=durations)


_Counted = tuple[UsageFigures, tuple[tuple[Measure, int], ...]]


def _of_job(recorded: RecordedEvent, view: Job) -> _Counted:
    if recorded.type == AttemptStarted.__name__:
        return UsageFigures(attempts=1), ()
    if recorded.type == AttemptFailed.__name__:
        # Attempt 0 failed before it began.
        return UsageFigures(failed_attempts=int(recorded.data["attempt"] > 0)), ()
    usage = view.own_usage
    durations = _durations(view, usage)
    sums = {f"{measure.value}_us": us for measure, us in durations.items()}
    sums.pop(f"{Measure.INTER_TOKEN.value}_us", None)
    figures = UsageFigures(
        **{view.status.value: 1},
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        kept_tokens=usage.kept_tokens,
        started_jobs=int(Measure.QUEUE in durations),
        timed_jobs=int(Measure.FIRST_TOKEN in durations),
        **sums,
    )
    return figures, tuple(durations.items())


def _durations(view: Job, usage: Usage) -> dict[Measure, int]:
    found = {Measure.TOTAL: _between_us(view.created_at, view.finished_at)}
    if view.started_at is not None:
        found[Measure.QUEUE] = _between_us(view.created_at, view.started_at)
    timings = view.timings
    if timings.first_token_ms > 0:
        decode_us = _us(timings.decode_ms)
        found[Measure.FIRST_TOKEN] = _us(timings.first_token_ms)
        found[Measure.PREFILL] = _us(timings.prefill_ms)
        found[Measure.DECODE] = decode_us
        if usage.completion_tokens > 1:
            found[Measure.INTER_TOKEN] = decode_us // (usage.completion_tokens - 1)
    return found


def _of_cache(type_name: str, data: Mapping[str, Any]) -> _Counted:
    if type_name == AgentCacheRestored.__name__:
        disk_tokens, took_us = int(data["disk_tokens"]), _us(data["took_ms"])
        figures = UsageFigures(
            hits=1,
            ram_tokens=int(data["tokens"]) - disk_tokens,
            disk_tokens=disk_tokens,
            restore_us=took_us,
        )
        return figures, ((Measure.RESTORE, took_us),)
    reason = _MISSES.get(data["reason"], "misses_diverged")
    return UsageFigures(**{reason: 1}, missed_tokens=int(data["missed_tokens"])), ()


def _us(duration_ms: float) -> int:
    return round(min(max(duration_ms * 1000, 0.0), DURATION_MAX_US))


def _between_us(start: str, end: str | None) -> int:
    # Machines whose clocks differ may record an end before its start.
    if end is None:
        return 0
    elapsed = datetime.fromisoformat(end) - datetime.fromisoformat(start)
    return min(max(elapsed // timedelta(microseconds=1), 0), DURATION_MAX_US)
