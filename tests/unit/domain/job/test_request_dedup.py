"""Who joins whose job: a lost client always finds its own, two deliberate requests stay two."""

from __future__ import annotations

import itertools

import pytest

from domain.job.request_dedup import (
    JoinTarget,
    Readership,
    RequestRepeat,
    is_read_by_another,
    job_to_join,
)
from domain.job.state import Job
from domain.values import JobId, JobStatus
from tests.support.builders.job_events import submitted

NOW, THEN, BEFORE = "2026-01-01T00:10:00Z", "2026-01-01T00:05:00Z", "2026-01-01T00:00:00Z"
OPEN = (JobStatus.QUEUED, JobStatus.RUNNING)


def view(name: str, status: JobStatus = JobStatus.RUNNING, *, cancelled: bool = False) -> Job:
    return Job(
        id=JobId(name),
        status=status,
        submitted=submitted(agent="s-1"),
        created_at=BEFORE,
        finished_at=NOW if status.is_terminal else None,
        cancel_requested=cancelled,
    )


def repeat(*, retry: bool = False, session: bool = True, repeatable: bool = False) -> RequestRepeat:
    return RequestRepeat(is_retry=retry, has_session=session, is_repeatable=repeatable, since=THEN)


def joined(job: Job, request: RequestRepeat, state: Readership) -> str | None:
    found = job_to_join([job], request, lambda _: state)
    return found.reason if found is not None else None


@pytest.mark.parametrize("status", [*OPEN, JobStatus.COMPLETED])
@pytest.mark.parametrize(("retry", "reason"), [(True, "retry"), (False, "same_session")])
def test_lost_reader_finds_its_job_again(status: JobStatus, reason: str, *, retry: bool) -> None:
    assert joined(view("job-1", status), repeat(retry=retry), Readership.LOST) == reason


@pytest.mark.parametrize("status", OPEN)
def test_second_equal_request_while_the_first_is_read_is_a_second_job(status: JobStatus) -> None:
    assert joined(view("job-1", status), repeat(), Readership.READING) is None
    # Its first try may have been refused before it became a job.
    assert joined(view("job-1", status), repeat(retry=True), Readership.READING) is None


@pytest.mark.parametrize("retry", [True, False])
def test_equal_request_after_the_answer_arrived_is_a_second_job(*, retry: bool) -> None:
    done = view("job-1", JobStatus.COMPLETED)
    assert joined(done, repeat(retry=retry), Readership.DELIVERED) is None


def test_request_with_but_one_answer_shares_the_job_that_works_on_it() -> None:
    asked = repeat(repeatable=True)
    assert joined(view("job-1"), asked, Readership.READING) == "same_answer"
    assert joined(view("job-1", JobStatus.COMPLETED), asked, Readership.DELIVERED) is None


@pytest.mark.parametrize("status", [JobStatus.FAILED, JobStatus.CANCELLED, JobStatus.EXPIRED])
@pytest.mark.parametrize("state", Readership)
def test_job_without_an_answer_is_never_joined(status: JobStatus, state: Readership) -> None:
    assert joined(view("job-1", status), repeat(retry=True, repeatable=True), state) is None


@pytest.mark.parametrize("state", Readership)
def test_job_that_is_being_cancelled_is_never_joined(state: Readership) -> None:
    cancelled = view("job-1", cancelled=True)
    assert joined(cancelled, repeat(retry=True, repeatable=True), state) is None


def test_job_given_up_is_never_joined() -> None:
    asked = repeat(retry=True, repeatable=True)
    assert joined(view("job-1"), asked, Readership.GIVEN_UP) is None


def test_after_a_restart_an_open_job_is_found_and_an_ended_one_only_by_a_retry() -> None:
    done = view("job-1", JobStatus.COMPLETED)
    assert joined(view("job-1"), repeat(), Readership.UNKNOWN) == "same_session"
    assert joined(done, repeat(), Readership.UNKNOWN) is None
    assert joined(done, repeat(retry=True), Readership.UNKNOWN) == "retry"


def test_job_that_ended_long_ago_is_not_joined() -> None:
    late = RequestRepeat(
        is_retry=True, has_session=True, is_repeatable=True, since="2026-01-01T00:10:01Z"
    )
    assert joined(view("job-1", JobStatus.COMPLETED), late, Readership.LOST) is None


def test_stranger_without_a_session_never_joins() -> None:
    asked = repeat(session=False, repeatable=True)
    for state, status in itertools.product(Readership, JobStatus):
        assert joined(view("job-1", status), asked, state) is None


def test_lost_one_goes_before_one_that_is_shared() -> None:
    states = {JobId("job-2"): Readership.READING, JobId("job-1"): Readership.LOST}
    found = job_to_join([view("job-2"), view("job-1")], repeat(repeatable=True), states.__getitem__)
    assert found == JoinTarget(job_id=JobId("job-1"), reason="same_session")


def test_two_retries_of_two_equal_requests_find_one_job_each() -> None:
    jobs = [view("job-2"), view("job-1")]
    states = dict.fromkeys((job.id for job in jobs), Readership.LOST)
    taken = []
    for _ in range(2):
        found = job_to_join(jobs, repeat(retry=True), states.__getitem__)
        assert found is not None
        states[found.job_id] = Readership.READING
        taken.append(found.job_id)
    assert sorted(taken) == ["job-1", "job-2"]
    assert job_to_join(jobs, repeat(retry=True), states.__getitem__) is None


def test_only_a_job_with_a_reader_is_worth_a_second_look() -> None:
    assert is_read_by_another([view("job-1")], repeat(), lambda _: Readership.READING)
    assert not is_read_by_another([view("job-1")], repeat(), lambda _: Readership.GIVEN_UP)
    ended = view("job-1", JobStatus.FAILED)
    assert not is_read_by_another([ended], repeat(), lambda _: Readership.READING)
    stranger = repeat(session=False)
    assert not is_read_by_another([view("job-1")], stranger, lambda _: Readership.READING)
