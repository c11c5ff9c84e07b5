"""The pace of measured jobs, and the seconds that further jobs take with it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from domain.engine.figures import RowFigures, RowPhase
from domain.job.eta import HALF_LIFE_JOBS, MeasuredJob, Pace, QueuedJob, RunningJob, pace_of
from domain.values import JobId, Priority

#: Two seconds per computed token, ten per generated one.
PACE = Pace(
    prefill_token_s=2.0,
    decode_token_s=10.0,
    completion_tokens=5.0,
    cached_share=0.75,
    byte_tokens=0.5,
)
MEASURED = MeasuredJob(
    prompt_tokens=100,
    cached_tokens=60,
    completion_tokens=20,
    prefill_ms=4_000,
    decode_ms=10_000,
    request_bytes=400,
)

NOTHING = MeasuredJob(
    prompt_tokens=0, cached_tokens=0, completion_tokens=0, prefill_ms=0, decode_ms=0
)


def queued(request_bytes: int | None, max_tokens: int | None = 1) -> QueuedJob:
    return QueuedJob(
        id=JobId("job-1"),
        line=None,
        priority=Priority.INTERACTIVE,
        request_bytes=request_bytes,
        max_tokens=max_tokens,
    )


def running(prompt_tokens: int, cached_tokens: int, max_tokens: int | None = 1) -> RunningJob:
    return RunningJob(
        id=JobId("job-1"),
        priority=Priority.INTERACTIVE,
        started_at="2026-01-01T00:00:00.000000Z",
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        max_tokens=max_tokens,
    )


@pytest.mark.parametrize(
    ("uncached_tokens", "max_tokens", "seconds"),
    [
        (7, None, 64.0),
        (7, 5, 64.0),
        (7, 9, 64.0),
        (7, 2, 34.0),
        (7, 0, 14.0),
        (0.25, 1, 10.5),
        (0, 1, 10.0),
        (-3, 1, 10.0),
    ],
)
def test_a_job_computes_its_prompt_and_generates_an_answer_of_usual_length(
    uncached_tokens: float, max_tokens: int | None, seconds: float
) -> None:
    assert PACE.seconds(uncached_tokens=uncached_tokens, max_tokens=max_tokens) == seconds


@pytest.mark.parametrize(
    ("request_bytes", "max_tokens", "seconds"),
    [(800, 1, 210.0), (800, None, 250.0), (4, 1, 11.0), (0, 1, 10.0), (None, 1, 10.0)],
)
def test_a_waiting_job_finds_the_average_share_of_its_prompt_in_the_cache(
    request_bytes: int | None, max_tokens: int | None, seconds: float
) -> None:
    assert PACE.of_queued(queued(request_bytes, max_tokens)) == seconds


@pytest.mark.parametrize(
    ("running_s", "left_s"),
    [(-5.0, 30.0), (0.0, 30.0), (12.0, 18.0), (20.0, 10.0), (27.0, 13.5), (90.0, 45.0)],
)
def test_a_running_job_takes_the_rest_of_its_time_and_half_of_it_if_it_is_overdue(
    running_s: float, left_s: float
) -> None:
    assert PACE.left_of(running(25, 15), running_s) == pytest.approx(left_s)


@pytest.mark.parametrize(
    ("read", "generated", "rate", "left_s", "most_s"),
    [
        (0, 0, None, 20 + 50, 20 + 400),  # the prompt, and an answer of usual length
        (10, 2, 0.5, 6, 76),
        (10, 5, 0.5, 5, 70),  # longer than usual: half of what there is
        (10, 30, 0.5, 20, 20),  # never beyond the limit of the request
        (10, 40, 0.5, 0, 0),
    ],
)
def test_a_running_job_is_estimated_by_its_tokens_left_and_its_rate(
    read: int, generated: int, rate: float | None, left_s: float, most_s: float
) -> None:
    row = RowFigures(
        job=JobId("job-1"),
        phase=RowPhase.DECODE,
        prompt_tokens=10,
        read_tokens=read,
        cached_tokens=0,
        generated_tokens=generated,
        max_tokens=40,
        tokens_per_s=rate,
    )
    # The time since the start counts for nothing: a paused worker makes no job overdue.
    assert PACE.left_of(replace(running(25, 15), figures=row), 1e6) == pytest.approx(left_s)
    assert PACE.most_left_of(row) == pytest.approx(most_s)


@pytest.mark.parametrize(
    ("prompt_tokens", "cached_tokens", "max_tokens", "left_s"),
    [(25, 15, None, 70.0), (25, 25, 1, 10.0), (15, 25, 1, 10.0), (25, 0, 2, 70.0)],
)
def test_a_running_job_computes_what_the_cache_lacks(
    prompt_tokens: int, cached_tokens: int, max_tokens: int | None, left_s: float
) -> None:
    assert PACE.left_of(running(prompt_tokens, cached_tokens, max_tokens), 0.0) == left_s


def test_the_pace_of_one_job_is_what_it_measured() -> None:
    assert pace_of([MEASURED]) == Pace(
        prefill_token_s=0.1,
        decode_token_s=0.5,
        completion_tokens=20.0,
        cached_share=0.6,
        byte_tokens=0.25,
    )


def test_jobs_count_in_proportion_to_their_tokens() -> None:
    long = MeasuredJob(
        prompt_tokens=300,
        cached_tokens=20,
        completion_tokens=60,
        prefill_ms=60_000,
        decode_ms=70_000,
        request_bytes=400,
    )
    # The older job has half the weight.
    pace = pace_of([MEASURED, *[NOTHING] * (HALF_LIFE_JOBS - 1), long])
    weights = sum(0.5 ** (age / HALF_LIFE_JOBS) for age in range(HALF_LIFE_JOBS + 1))
    assert pace is not None
    assert pace.prefill_token_s == pytest.approx((4 + 30) / (40 + 140))
    assert pace.decode_token_s == pytest.approx((10 + 35) / (20 + 30))
    assert pace.completion_tokens == pytest.approx((20 + 30) / weights)
    assert pace.cached_share == pytest.approx((60 + 10) / (100 + 150))
    assert pace.byte_tokens == pytest.approx((100 + 150) / (400 + 200))


def test_a_cache_that_holds_more_than_the_prompt_holds_all_of_it() -> None:
    pace = pace_of([MEASURED, replace(MEASURED, cached_tokens=150)])
    assert pace is not None
    weight = 0.5 ** (1 / HALF_LIFE_JOBS)
    assert pace.prefill_token_s == pytest.approx((4 + 4 * weight) / 40)
    assert pace.cached_share == pytest.approx((60 + 100 * weight) / (100 + 100 * weight))


@pytest.mark.parametrize("request_bytes", [None, 0])
def test_prompts_whose_request_was_erased_do_not_count_for_the_tokens_per_byte(
    request_bytes: int | None,
) -> None:
    erased = replace(MEASURED, prompt_tokens=10_000, request_bytes=request_bytes)
    pace = pace_of([erased, MEASURED, erased])
    assert pace is not None
    assert pace.byte_tokens == pytest.approx(0.25)


@pytest.mark.parametrize(
    "job",
    [
        replace(MEASURED, cached_tokens=100),
        replace(MEASURED, cached_tokens=101),
        replace(MEASURED, completion_tokens=0),
        replace(MEASURED, request_bytes=0),
    ],
)
def test_there_is_no_pace_before_each_rate_was_measured(job: MeasuredJob) -> None:
    assert pace_of([job]) is None
    assert pace_of([job, MEASURED]) is not None


def test_one_token_is_enough_for_a_rate() -> None:
    least = MeasuredJob(
        prompt_tokens=1,
        cached_tokens=0,
        completion_tokens=1,
        prefill_ms=500,
        decode_ms=250,
        request_bytes=1,
    )
    assert pace_of([least]) == Pace(
        prefill_token_s=0.5,
        decode_token_s=0.25,
        completion_tokens=1.0,
        cached_share=0.0,
        byte_tokens=1.0,
    )
