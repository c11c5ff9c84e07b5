"""What an event adds to the sums and histograms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.events.cache import AgentCacheMissed, AgentCacheRestored
from domain.events.event import Event
from domain.events.job import (
    AttemptFailed,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobRetried,
)
from domain.usage.figures import BOUNDS_US, Measure, UsageFigures, UsageGroup, bucket_of
from domain.usage.fold import DURATION_MAX_US
from domain.values import JobId, Owner, StreamName, Timings, Usage
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock

TIMINGS = Timings(prefill_ms=10, first_token_ms=20, decode_ms=30)


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.log = InMemoryEventLog(self.clock)

    def append(self, stream: str, *events: Event, after_s: float = 0.0) -> None:
        self.clock.advance(after_s)
        version = len(self.log.load(StreamName(stream)))
        drafts = [draft(event) for event in events]
        self.log.append(StreamName(stream), drafts, expected_version=version)

    def sums(self, model: str = "m") -> UsageFigures:
        return self.log.usage.totals().get(model, UsageFigures())


def test_a_completed_job_is_counted_with_its_tokens_and_times() -> None:
    world = World()
    world.append("job-1", submitted())
    world.append("job-1", started(), after_s=2)
    assert world.sums() == UsageFigures(attempts=1)
    world.append("job-1", completed(), after_s=3)
    assert world.sums() == UsageFigures(
        completed=1,
        attempts=1,
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=3,
        started_jobs=1,
        timed_jobs=1,
        queue_us=2_000_000,
        prefill_us=2_250,
        first_token_us=3_000,
        decode_us=4_125,
        total_us=5_000_000,
    )
    histograms = world.log.usage.histograms()
    assert {measure for _, measure in histograms} == set(Measure) - {Measure.RESTORE}
    # Two tokens follow the first one.
    assert histograms["m", Measure.INTER_TOKEN].sum_us == 2_062
    assert {one.count for one in histograms.values()} == {1}


@pytest.mark.parametrize(
    ("end", "name", "timed"),
    [
        (
            JobCancelled(attempt=1, usage=Usage(completion_tokens=1), timings=TIMINGS),
            "cancelled",
            1,
        ),
        (JobCancelled(attempt=1, usage=Usage(completion_tokens=1)), "cancelled", 0),
        (JobExpired(deadline="d", attempt=1, timings=TIMINGS), "expired", 1),
        (JobExpired(deadline="d", attempt=1), "expired", 0),
        (JobFailed(error="e", message="m"), "failed", 0),
    ],
)
def test_other_ends_are_counted_with_what_is_known(end: Event, name: str, timed: int) -> None:
    world = World()
    world.append("job-1", submitted(), started(), end)
    sums = world.sums()
    assert (sums.jobs, getattr(sums, name), sums.timed_jobs, sums.started_jobs) == (1, 1, timed, 1)
    assert sums.first_token_us == 20_000 * timed
    assert sums.prompt_tokens == 0
    histograms = world.log.usage.histograms()
    assert (("m", Measure.FIRST_TOKEN) in histograms) == bool(timed)
    assert histograms["m", Measure.TOTAL].count == 1


def test_a_job_that_never_began_has_no_model_and_no_queue_time() -> None:
    world = World()
    world.append("job-1", submitted(agent="a"), JobCancelled(attempt=0, usage=Usage()))
    world.append(
        "job-2", submitted(), AttemptFailed(attempt=0, error="e", message="m", retryable=False)
    )
    assert world.sums("") == UsageFigures(cancelled=1)
    assert set(world.log.usage.grouped(UsageGroup.AGENT)) == {"a", ""}


def test_a_retried_job_is_counted_at_each_end_with_the_times_of_its_last_run() -> None:
    world = World()
    cancelled = JobCancelled(attempt=1, usage=Usage(), timings=TIMINGS)
    world.append("job-1", submitted(), started(), cancelled, JobRetried(reason="api"))
    assert world.sums().timed_jobs == 1
    failed = AttemptFailed(attempt=3, error="e", message="m", retryable=False)
    world.append("job-1", started(3), failed, JobFailed(error="e", message="m"))
    sums = world.sums()
    assert (sums.cancelled, sums.failed, sums.timed_jobs) == (1, 1, 1)
    assert (sums.attempts, sums.failed_attempts) == (2, 1)


def test_contexts_are_counted_for_the_model_of_the_job_that_they_name() -> None:
    world = World()
    job = JobId("job-1")
    restored = AgentCacheRestored(
        job=job, source="disk", tokens=500, disk_tokens=200, prompt_tokens=600, took_ms=7.5
    )
    world.append("job-1", submitted(agent="a"), started())
    world.append("agent-a", restored)
    for reason in ("diverged", "gone", "model_changed"):
        world.append(
            "agent-a", AgentCacheMissed(job=job, reason=reason, at_token=1, missed_tokens=30)
        )
    assert world.sums() == UsageFigures(
        attempts=1,
        hits=1,
        ram_tokens=300,
        disk_tokens=200,
        restore_us=7_500,
        misses_diverged=1,
        misses_gone=1,
        misses_model_changed=1,
        missed_tokens=90,
    )
    assert world.log.usage.histograms()["m", Measure.RESTORE].sum_us == 7_500


def test_sums_are_kept_by_hour_day_and_agent() -> None:
    world = World()
    for number, agent in enumerate(("a", "b", "a")):
        world.append(f"job-{number}", submitted(agent=agent), started(), completed())
        world.clock.advance(3600)
    views = world.log.usage
    assert {name: sums.jobs for name, sums in views.grouped(UsageGroup.AGENT).items()} == {
        "a": 2,
        "b": 1,
    }
    first, second, third = views.grouped(UsageGroup.HOUR)
    between = views.grouped(UsageGroup.MODEL, since=second, until=third)
    assert between["m"].jobs == 1
    assert sum(sums.jobs for sums in views.grouped(UsageGroup.DAY).values()) == 3
    assert first[:10] in views.grouped(UsageGroup.DAY)


def test_an_end_before_its_start_takes_no_time_and_an_absurd_time_is_bounded() -> None:
    world = World()
    world.append("job-1", submitted(), after_s=100)
    absurd = JobCancelled(
        attempt=1, usage=Usage(), timings=Timings(first_token_ms=1e300, prefill_ms=-1e300)
    )
    world.append("job-1", started(), absurd, after_s=-50)
    sums = world.sums()
    assert (sums.total_us, sums.prefill_us, sums.first_token_us) == (0, 0, DURATION_MAX_US)


@given(st.sampled_from(Measure), st.integers(0, DURATION_MAX_US))
def test_a_duration_is_in_the_first_bucket_whose_bound_it_does_not_exceed(
    measure: Measure, us: int
) -> None:
    bounds: tuple[Any, ...] = (*BOUNDS_US[measure], float("inf"))
    assert list(bounds) == sorted(set(bounds))
    bucket = bucket_of(measure, us)
    assert us <= bounds[bucket]
    assert bucket == 0 or us > bounds[bucket - 1]


def test_sums_are_kept_by_the_key_of_the_job() -> None:
    world = World()
    for number, owner in enumerate(("alice", "bob", None)):
        asked = replace(submitted(), owner=None if owner is None else Owner(owner))
        world.append(f"job-{number}", asked, started(), completed())
    for owner in ("alice", "bob"):
        found = world.log.usage.grouped(UsageGroup.MODEL, owner=Owner(owner))
        assert {key: sums.completed for key, sums in found.items()} == {"m": 1}
    assert world.sums().completed == 3


def test_only_an_attempt_that_began_counts_as_failed() -> None:
    world = World()
    failed = AttemptFailed(attempt=1, error="e", message="m", retryable=True)
    world.append("job-1", submitted(), started(), failed, replace(failed, attempt=2))
    assert world.sums().failed_attempts == 2


def test_reasoning_and_kept_tokens_are_summed() -> None:
    world = World()
    usage = Usage(prompt_tokens=9, completion_tokens=2, reasoning_tokens=1, kept_tokens=8)
    world.append("job-1", submitted(), started(), replace(completed(), usage=usage))
    sums = world.sums()
    assert (sums.reasoning_tokens, sums.kept_tokens) == (1, 8)
    # Of two tokens one follows the first.
    assert world.log.usage.histograms()["m", Measure.INTER_TOKEN].sum_us == 4_125
