from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.chat.items import Failed, Finished
from domain.errors import (
    JobAlreadyTerminal,
    NotRetryable,
    SemanticError,
    StaleAttempt,
)
from domain.events.job import (
    AttemptFailed,
    AttemptStarted,
    JobAttached,
    JobCancelled,
    JobCancelRequested,
    JobCompleted,
    JobEvent,
    JobExpired,
    JobFailed,
    JobHidden,
    JobRelabelled,
    JobRetried,
    JobSubmitted,
)
from domain.job.decisions import ATTACHED_MAX, JobProposal, decide, failed_attempt
from domain.job.state import DEADLINE, Job, evolve, fold
from domain.values import (
    Digest,
    JobId,
    JobStatus,
    StopReason,
    Timings,
    Usage,
    digest_of,
)
from tests.support.builders.job_events import completed, started, submitted
from tests.support.builders.job_histories import commands, histories

ID = JobId("job-1")
USAGE = Usage(prompt_tokens=3, cached_tokens=1, completion_tokens=2)
RETRYABLE = Failed(error="engine_failure", message="it broke", retryable=True)
FINAL = Failed(error="invalid_request", message="it cannot", retryable=False)
CANCELLED = JobCancelled(attempt=1, usage=USAGE)
REQUESTED = JobCancelRequested(reason="api")
FAILED_ONCE = AttemptFailed(attempt=1, error="engine_failure", message="it broke", retryable=True)
FAILED = JobFailed(error="engine_failure", message="it broke")

FINISH_BY = "2026-01-02T00:00:00Z"
QUEUED: tuple[JobEvent, ...] = (submitted(),)
RUNNING = (*QUEUED, started())
BACK = (*RUNNING, FAILED_ONCE)
AGAIN = (*BACK, started(2))
ENDINGS: dict[JobStatus, tuple[JobEvent, ...]] = {
    JobStatus.COMPLETED: (*RUNNING, completed()),
    JobStatus.FAILED: (*RUNNING, FAILED),
    JobStatus.CANCELLED: (*RUNNING, CANCELLED),
    JobStatus.EXPIRED: (*QUEUED, JobExpired(deadline="2026-01-01T00:00:00Z")),
}


def _complete(attempt: int) -> JobCompleted:
    return JobCompleted(
        attempt=attempt,
        stop_reason=StopReason.STOP_SEQUENCE,
        stop_sequence="END",
        usage=USAGE,
        output=digest_of(b"output"),
        token_hash="0" * 64,
        timings=Timings(queued_ms=1.0),
    )


def _job(history: tuple[JobEvent, ...]) -> Job:
    return fold(ID, history)


# --- evolve --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "status", "attempt", "active_attempt"),
    [
        (QUEUED, JobStatus.QUEUED, 0, False),
        (RUNNING, JobStatus.RUNNING, 1, True),
        (BACK, JobStatus.QUEUED, 1, False),
        (AGAIN, JobStatus.RUNNING, 2, True),
        *[(history, status, 1, False) for status, history in list(ENDINGS.items())[:3]],
        (ENDINGS[JobStatus.EXPIRED], JobStatus.EXPIRED, 0, False),
        ((*ENDINGS[JobStatus.FAILED], JobRetried(reason="r")), JobStatus.QUEUED, 2, False),
    ],
)
def test_events_lead_to_a_state(
    history: tuple[JobEvent, ...], status: JobStatus, attempt: int, *, active_attempt: bool
) -> None:
    job = _job(history)
    assert (job.status, job.attempt, job.active_attempt) == (status, attempt, active_attempt)
    assert job.version == len(history)


@pytest.mark.parametrize(
    ("history", "ending"),
    [
        (RUNNING, None),
        (
            ENDINGS[JobStatus.COMPLETED],
            Finished(stop_reason=StopReason.END_TURN, usage=completed().usage),
        ),
        (
            ENDINGS[JobStatus.CANCELLED],
            Finished(stop_reason=StopReason.CANCELLED, usage=USAGE),
        ),
        (
            ENDINGS[JobStatus.FAILED],
            Failed(error="engine_failure", message="it broke", retryable=False),
        ),
        (
            ENDINGS[JobStatus.EXPIRED],
            Failed(
                error="expired",
                message="the deadline 2026-01-01T00:00:00Z passed",
                retryable=False,
            ),
        ),
        ((*ENDINGS[JobStatus.FAILED], JobRetried(reason="r")), None),
    ],
)
def test_the_last_item_follows_from_the_last_event(
    history: tuple[JobEvent, ...], ending: Finished | Failed | None
) -> None:
    found = _job(history).ending
    assert (replace(found, at=None) if isinstance(found, Finished) else found) == ending


def test_a_wish_to_cancel_is_remembered_until_an_operator_retries() -> None:
    assert _job((*RUNNING, REQUESTED)).cancel_requested
    assert not _job((*RUNNING, REQUESTED, FAILED, JobRetried(reason="r"))).cancel_requested


def test_a_repeated_request_that_joins_changes_only_the_version() -> None:
    before, after = _job(RUNNING), _job((*RUNNING, JobAttached(reason="again")))
    assert after == evolve(before, JobAttached(reason="again"))
    assert (after.status, after.attempt, after.version) == (before.status, 1, 3)


# --- decide: what may happen ---------------------------------------------------------------


@pytest.mark.parametrize(("history", "attempt"), [(QUEUED, 1), (BACK, 2), (RUNNING, 2)])
def test_an_attempt_takes_the_next_number(history: tuple[JobEvent, ...], attempt: int) -> None:
    # A running job may be taken over: its worker may be dead, and if not, it is stale from now on.
    assert decide(_job(history), started(attempt)) == (started(attempt),)


def test_the_active_attempt_completes_the_job() -> None:
    (event,) = decide(_job(AGAIN), _complete(2))
    assert event == JobCompleted(
        attempt=2,
        stop_reason=StopReason.STOP_SEQUENCE,
        stop_sequence="END",
        usage=USAGE,
        output=digest_of(b"output"),
        token_hash="0" * 64,
        timings=Timings(queued_ms=1.0),
    )


def test_a_retryable_failure_puts_the_job_back() -> None:
    assert decide(_job(RUNNING), failed_attempt(attempt=1, failure=RETRYABLE)) == (FAILED_ONCE,)


def test_a_failure_that_is_not_retryable_ends_the_job() -> None:
    assert decide(_job(RUNNING), failed_attempt(attempt=1, failure=FINAL)) == (
        AttemptFailed(attempt=1, error="invalid_request", message="it cannot", retryable=False),
        JobFailed(error="invalid_request", message="it cannot"),
    )


def test_the_last_attempt_that_fails_ends_the_job() -> None:
    job = _job((submitted(attempts_max=1), started()))
    assert decide(job, failed_attempt(attempt=1, failure=RETRYABLE)) == (FAILED_ONCE, FAILED)


@pytest.mark.parametrize("history", [QUEUED, BACK, RUNNING])
def test_a_job_that_cannot_even_start_fails_under_number_0(history: tuple[JobEvent, ...]) -> None:
    first, last = decide(_job(history), failed_attempt(attempt=0, failure=FINAL))
    assert isinstance(first, AttemptFailed)
    assert first.attempt == 0
    assert isinstance(last, JobFailed)


@pytest.mark.parametrize("history", [QUEUED, RUNNING, BACK])
def test_the_wish_to_cancel_an_open_job_is_recorded_once(history: tuple[JobEvent, ...]) -> None:
    assert decide(_job(history), JobCancelRequested(reason="api")) == (REQUESTED,)
    assert decide(_job((*history, REQUESTED)), JobCancelRequested(reason="operator")) == ()


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_the_wish_to_cancel_an_ended_job_is_nothing(ending: tuple[JobEvent, ...]) -> None:
    assert decide(_job(ending), JobCancelRequested(reason="api")) == ()


@pytest.mark.parametrize(("history", "attempt"), [(QUEUED, 0), (BACK, 0), (RUNNING, 1)])
def test_a_cancelled_job_has_the_attempt_that_stopped(
    history: tuple[JobEvent, ...], attempt: int
) -> None:
    command = JobCancelled(attempt=attempt, usage=USAGE, output=digest_of(b"so far"))
    assert decide(_job((*history, REQUESTED)), command) == (
        JobCancelled(attempt=attempt, usage=USAGE, output=digest_of(b"so far")),
    )


def test_a_second_confirmation_of_the_end_is_nothing() -> None:
    job = _job(ENDINGS[JobStatus.CANCELLED])
    assert decide(job, JobCancelled(attempt=1, usage=USAGE)) == ()


@pytest.mark.parametrize(("history", "attempt"), [(QUEUED, 0), (RUNNING, 1)])
def test_a_job_that_its_deadline_stopped_expires_with_what_it_emitted(
    history: tuple[JobEvent, ...], attempt: int
) -> None:
    accepted = replace(submitted(), deadline="2026-01-01T00:00:00Z", finish_deadline=FINISH_BY)
    job = _job((accepted, *history[1:], JobCancelRequested(reason=DEADLINE)))
    late = FINISH_BY if attempt else "2026-01-01T00:00:00Z"
    output = digest_of(b"so far")
    (expired,) = decide(job, JobCancelled(attempt=attempt, usage=USAGE, output=output))
    assert expired == JobExpired(deadline=late, attempt=attempt, usage=USAGE, output=output)
    assert decide(evolve(job, expired), JobCancelled(attempt=attempt, usage=USAGE)) == ()


@pytest.mark.parametrize("status", [status for status in ENDINGS if status != "completed"])
def test_a_job_without_an_answer_is_tried_again_without_its_past(status: JobStatus) -> None:
    (first, *rest) = ENDINGS[status]
    assert isinstance(first, JobSubmitted)
    job = _job((replace(first, deadline=FINISH_BY, finish_deadline=FINISH_BY), *rest))
    (again,) = decide(job, JobRetried(reason="api"))
    job = evolve(job, again)
    assert (job.status, job.counted_failures, job.deaths_without_progress) == (
        JobStatus.QUEUED,
        0,
        0,
    )
    assert (job.submitted.deadline, job.submitted.finish_deadline) == (None, None)


@pytest.mark.parametrize("history", [QUEUED, RUNNING, ENDINGS[JobStatus.COMPLETED]])
def test_a_job_that_is_open_or_answered_is_not_tried_again(history: tuple[JobEvent, ...]) -> None:
    with pytest.raises(NotRetryable):
        decide(_job(history), JobRetried(reason="api"))


def test_a_line_that_was_never_a_request_is_not_tried_again() -> None:
    refused = _job((*QUEUED, JobFailed(error="invalid_request", message="no messages")))
    with pytest.raises(NotRetryable, match="no messages"):
        decide(refused, JobRetried(reason="api"))


def test_repeats_join_any_job_and_the_log_keeps_so_many() -> None:
    job = _job(RUNNING)
    for _ in range(ATTACHED_MAX + 5):
        for event in decide(job, JobAttached(reason="retry", request_id="req_2")):
            assert event == JobAttached(reason="retry", request_id="req_2")
            job = evolve(job, event)
    assert job.version == len(RUNNING) + ATTACHED_MAX


@pytest.mark.parametrize("history", [QUEUED, RUNNING, *ENDINGS.values()])
def test_any_job_is_hidden_once_and_goes_on_as_it_was(history: tuple[JobEvent, ...]) -> None:
    job = _job(history)
    assert decide(job, JobHidden()) == (JobHidden(),)
    hidden = evolve(job, JobHidden())
    assert hidden == replace(job, hidden=True, version=job.version + 1)
    assert decide(hidden, JobHidden()) == ()


@pytest.mark.parametrize(
    ("emitted", "deaths"), [((0, 0, 0), 2), ((0, 3, 3), 1), ((0, 3, 5), 0), ((0, 0, 4), 0)]
)
def test_only_deaths_without_a_new_token_count_as_silent(
    emitted: tuple[int, ...], deaths: int
) -> None:
    attempts = [replace(started(n), resumed_tokens=tokens) for n, tokens in enumerate(emitted, 1)]
    assert _job((*QUEUED, *attempts)).deaths_without_progress == deaths


# --- decide: what may not happen -----------------------------------------------------------


@pytest.mark.parametrize("status", ENDINGS)
@pytest.mark.parametrize(
    "command",
    [
        failed_attempt(attempt=1, failure=RETRYABLE),
        failed_attempt(attempt=0, failure=FINAL),
    ],
)
def test_an_ended_job_neither_starts_nor_fails(status: JobStatus, command: JobProposal) -> None:
    with pytest.raises(JobAlreadyTerminal) as caught:
        decide(_job(ENDINGS[status]), command)
    assert caught.value.status == status


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_an_ended_job_gets_no_further_attempt(ending: tuple[JobEvent, ...]) -> None:
    job = _job(ending)
    with pytest.raises(JobAlreadyTerminal):
        decide(job, started(job.attempt + 1))


@pytest.mark.parametrize("history", [QUEUED, RUNNING, BACK])
@pytest.mark.parametrize("step", [0, 2])
def test_no_attempt_number_is_taken_twice_or_left_out(
    history: tuple[JobEvent, ...], step: int
) -> None:
    job = _job(history)
    with pytest.raises(StaleAttempt):
        decide(job, started(job.attempt + step))


@pytest.mark.parametrize("status", [status for status in ENDINGS if status != "cancelled"])
def test_an_ended_job_is_not_cancelled(status: JobStatus) -> None:
    with pytest.raises(JobAlreadyTerminal):
        decide(_job(ENDINGS[status]), JobCancelled(attempt=1, usage=USAGE))


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_an_ended_job_is_not_completed(ending: tuple[JobEvent, ...]) -> None:
    with pytest.raises(StaleAttempt):
        decide(_job(ending), _complete(1))


@pytest.mark.parametrize(("history", "attempt"), [(AGAIN, 1), (RUNNING, 2), (BACK, 1), (QUEUED, 1)])
def test_an_attempt_that_does_not_speak_is_stale(
    history: tuple[JobEvent, ...], attempt: int
) -> None:
    stale: list[JobProposal] = [
        _complete(attempt),
        failed_attempt(attempt=attempt, failure=RETRYABLE),
        JobCancelled(attempt=attempt, usage=USAGE),
    ]
    for command in stale:
        with pytest.raises(StaleAttempt):
            decide(_job(history), command)


# --- whole lives ---------------------------------------------------------------------------


@given(histories())
def test_attempts_count_up_and_an_end_is_final(history: tuple[JobEvent, ...]) -> None:
    # A retry passes one number over: late words of the life before bear it.
    counted = [event for event in history if isinstance(event, AttemptStarted | JobRetried)]
    numbers = [one.attempt for one in counted if isinstance(one, AttemptStarted)]
    assert numbers == [
        number for number, one in enumerate(counted, 1) if isinstance(one, AttemptStarted)
    ]
    job = _job(history[:1])
    for event in history[1:]:
        if job.status.is_terminal:
            # Only a repeated request or an operator comes after the end.
            assert isinstance(event, JobAttached | JobRetried)
        job = evolve(job, event)
        assert job.active_attempt == (job.status is JobStatus.RUNNING)
        assert (job.ending is not None) == job.status.is_terminal


@given(histories(), st.data())
def test_a_decision_gives_events_or_a_typed_refusal(
    history: tuple[JobEvent, ...], data: st.DataObject
) -> None:
    job = _job(history)
    command = data.draw(commands(job))
    try:
        events = decide(job, command)
    except SemanticError:
        return
    for event in events:
        job = evolve(job, event)
    if isinstance(command, AttemptStarted):
        # The worker of a job that missed the time of its start ends it instead.
        assert (job.status is JobStatus.RUNNING) is not _job(history).is_rejected


@pytest.mark.parametrize("history", [QUEUED, RUNNING, *ENDINGS.values()])
def test_new_metadata_replace_the_text_of_the_request_alone(history: tuple[JobEvent, ...]) -> None:
    job, event = _job(history), JobRelabelled(wire=Digest("w"))
    assert decide(job, event) == (event,)
    after = evolve(job, event)
    submitted = replace(job.submitted, wire=event.wire)
    assert after == replace(job, submitted=submitted, version=job.version + 1)
    assert decide(after, event) == ()
