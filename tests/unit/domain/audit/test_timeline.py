from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given

from domain.audit.timeline import Timeline, build_timeline
from domain.events.job import (
    AttemptFailed,
    AttemptStarted,
    JobAttached,
    JobCancelled,
    JobCancelRequested,
    JobEvent,
    JobFailed,
    JobRetried,
)
from domain.job.state import fold
from domain.values import JobId, Timings, Usage, WorkerId
from tests.support.builders.job_events import completed, recorded_at, started, submitted
from tests.support.builders.job_histories import histories


def _whats(timeline: Timeline) -> Sequence[str]:
    return [step.what for step in timeline.steps]


def _start(attempt: int, worker: str = "worker-1", resumed: int = 0) -> AttemptStarted:
    return replace(started(attempt), worker=WorkerId(worker), resumed_tokens=resumed)


def test_a_plain_job_has_its_waits_and_its_first_token() -> None:
    timings = Timings(queued_ms=500, prefill_ms=40, first_token_ms=60, decode_ms=1000)
    usage = Usage(prompt_tokens=10, cached_tokens=4, completion_tokens=101)
    done = replace(completed(), timings=timings, usage=usage)
    timeline = build_timeline(recorded_at((0, submitted(agent="a")), (0.5, started()), (2, done)))

    assert _whats(timeline) == ["accepted", "attempt", "prefill", "first_token", "completed"]
    assert [step.after_ms for step in timeline.steps] == [0, 500, 520, 560, 2000]
    assert [step.took_ms for step in timeline.steps] == [None, 500, 40, None, 1000]
    assert (timeline.ended, timeline.total_ms, timeline.queued_ms, timeline.attempts) == (
        True,
        2000,
        500,
        1,
    )
    assert "4 of them known from memory" in timeline.steps[1].text
    assert "100 tokens/s" in timeline.steps[-1].text
    assert "for a" in timeline.steps[0].text


def test_a_worker_that_died_is_lost_when_it_was_found_dead() -> None:
    timeline = build_timeline(
        recorded_at((0, submitted()), (1, _start(1)), (5, _start(2, "worker-2", resumed=7))),
        {WorkerId("worker-1"): "2026-01-01T00:00:03.000000Z"},
    )
    assert _whats(timeline) == ["accepted", "attempt", "lost", "attempt"]
    assert timeline.steps[2].after_ms == 3000
    assert timeline.steps[3].took_ms == 2000
    assert "continues after 7 tokens of earlier attempts" in timeline.steps[3].text
    assert (timeline.ended, timeline.queued_ms, timeline.attempts) == (False, 3000, 2)


def test_a_death_without_a_record_is_lost_at_the_next_attempt() -> None:
    timeline = build_timeline(recorded_at((0, submitted()), (1, _start(1)), (5, _start(2))))
    assert (timeline.steps[2].what, timeline.steps[2].after_ms) == ("lost", 5000)


def test_failures_retries_repeats_and_cancellations_are_steps() -> None:
    failed = AttemptFailed(attempt=1, error="engine_failure", message="it broke", retryable=True)
    timeline = build_timeline(
        recorded_at(
            (0, submitted()),
            (1, started()),
            (2, JobAttached(reason="retry")),
            (3, failed),
            (3, JobFailed(error="engine_failure", message="it broke")),
            (4, JobRetried(reason="operator")),
            (6, JobCancelRequested(reason="api")),
            (7, JobCancelled(attempt=0, usage=Usage())),
        )
    )
    assert _whats(timeline)[2:] == [
        "attached",
        "attempt_failed",
        "failed",
        "retried",
        "cancel_requested",
        "cancelled",
    ]
    assert (timeline.queued_ms, timeline.ended) == (4000, True)


@given(histories())
def test_every_life_has_a_story(life: tuple[JobEvent, ...]) -> None:
    timeline = build_timeline(recorded_at(*((second, event) for second, event in enumerate(life))))
    assert sum(step.position is not None for step in timeline.steps) == len(life)
    assert timeline.attempts == sum(isinstance(event, AttemptStarted) for event in life)
    assert 0 <= timeline.queued_ms <= timeline.total_ms
    job = fold(JobId("job-1"), life)
    if timeline.ended:
        assert job.status.is_terminal
