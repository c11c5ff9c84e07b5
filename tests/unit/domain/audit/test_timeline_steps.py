"""Every field of the steps that an operator reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.audit.timeline import TimelineStep, build_timeline, show_duration
from domain.events.job import AttemptFailed, JobExpired
from domain.values import JobId, Timings, Usage, WorkerId
from tests.support.builders.job_events import completed, recorded_at, started, submitted

AT = "2026-01-01T00:00:0"


#: A first attempt whose worker dies, and a second one that completes the job.
STEPS = (
    TimelineStep(
        what="accepted",
        at=f"{AT}0.000000Z",
        after_ms=0,
        text="jobs request: m, interactive, at most 16 tokens",
        position=1,
    ),
    TimelineStep(
        what="attempt",
        at=f"{AT}0.123457Z",
        after_ms=123.457,
        text="attempt 1 on worker-1; after 123 ms in the queue;"
        " prompt of 10 tokens, 4 of them known from memory",
        took_ms=123.457,
        attempt=1,
        position=2,
    ),
    TimelineStep(
        what="lost",
        at=f"{AT}1.500000Z",
        after_ms=1500,
        text="attempt 1 ended without a report: worker-1 died",
        attempt=1,
    ),
    TimelineStep(
        what="attempt",
        at=f"{AT}2.000000Z",
        after_ms=2000,
        text="attempt 2 on worker-2; after 500 ms in the queue; prompt of 10 tokens, none known",
        took_ms=500,
        attempt=2,
        position=3,
    ),
    TimelineStep(
        what="prefill",
        at=f"{AT}2.020250Z",
        after_ms=2020.25,
        text="read 2,006 tokens of the prompt, 4 were known",
        took_ms=40,
        attempt=2,
    ),
    TimelineStep(
        what="first_token",
        at=f"{AT}2.060250Z",
        after_ms=2060.25,
        text="first token",
        attempt=2,
    ),
    TimelineStep(
        what="completed",
        at=f"{AT}4.000000Z",
        after_ms=4000,
        text="completed (end_turn): 1,101 tokens, 1,100 tokens/s",
        took_ms=1000,
        attempt=2,
        position=4,
    ),
)


def test_steps_of_a_job_whose_worker_died() -> None:
    timings = Timings(prefill_ms=40, first_token_ms=60.25, decode_ms=1000)
    usage = Usage(prompt_tokens=2010, cached_tokens=4, completion_tokens=1101)
    second = replace(started(2), cache_source="none", worker=WorkerId("worker-2"))
    timeline = build_timeline(
        recorded_at(
            (0, submitted()),
            (0.123457, started()),
            (2, second),
            (4, replace(completed(2), timings=timings, usage=usage)),
        ),
        {WorkerId("worker-1"): f"{AT}1.500000Z"},
    )
    assert timeline.job == JobId("job-1")
    assert timeline.steps == STEPS


def test_failed_attempt_waits_again_and_has_its_number() -> None:
    failed = AttemptFailed(attempt=1, error="draining", message="it ends", retryable=True)
    timeline = build_timeline(recorded_at((0, submitted()), (1, started()), (2, failed)))
    assert timeline.ended is False
    assert (timeline.steps[-1].attempt, timeline.steps[-1].text) == (
        1,
        "attempt 1 failed: draining: it ends (may be tried again)",
    )


def test_wait_until_the_deadline_is_time_in_the_queue() -> None:
    timeline = build_timeline(
        recorded_at((0, submitted()), (3, JobExpired(deadline=f"{AT}3.000000Z")))
    )
    assert (timeline.ended, timeline.queued_ms) == (True, 3000)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0.4, "0 ms"),
        (1234.5, "1,234 ms"),
        (9999.4, "9,999 ms"),
        (10_000, "10.0 s"),
        (1_234_560, "1,234.6 s"),
    ],
)
def test_duration_is_shown_in_seconds_from_ten_on(ms: float, text: str) -> None:
    assert show_duration(ms) == text
