"""A job that kills its workers uses up its own attempts, and not those of the jobs beside it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.errors import EngineLost
from domain.events.job import AttemptFailed
from domain.job.fair_scheduler import Suspicion, TurnOrder, TurnRequest
from domain.job.run_attempt import suspicion_of, worn_out
from domain.job.state import Job, counted_failures_now, evolve, fold
from domain.values import JobId, JobStatus, Priority
from tests.support.builders.job_events import started, submitted

SLOTS = 4
TOKENS = 6
LIVES_MAX = 60
#: Tokens that a job has computed when other jobs may start beside it.
TRIAL_TOKENS = 2
LOST = AttemptFailed(attempt=1, error=EngineLost.code, message="gone", retryable=True)


@dataclass
class Work:
    """A job, the tokens that it emitted, and the token at which it kills its worker."""

    job: Job
    kills_at: int | None
    tokens: int = 0
    new_tokens: int = 0
    is_over: bool = False

    def start(self) -> None:
        attempt = replace(started(self.job.attempt + 1), resumed_tokens=self.tokens)
        self.job, self.new_tokens = evolve(self.job, attempt), 0

    @property
    def kills(self) -> bool:
        """Whether the worker dies when this job computes its next token."""
        return self.kills_at is not None and self.tokens >= self.kills_at


def live(works: dict[JobId, Work], delivered: list[JobId]) -> None:
    """Run a worker until it dies or all jobs are over."""
    order = TurnOrder(slots=SLOTS, interactive_reserved=0)
    for one in delivered:
        suspicion = suspicion_of(works[one].job, works[one].tokens)
        order.add(
            TurnRequest(id=one, line=None, priority=Priority.INTERACTIVE, suspicion=suspicion)
        )
    running: dict[JobId, Work] = {}
    while True:
        while (job_id := order.next()) is not None:
            work = works[job_id]
            if worn_out(work.job, work.tokens) is not None:
                work.is_over = True
                order.release(job_id)
                continue
            work.start()
            running[job_id] = work
        if not running or any(work.kills for work in running.values()):
            return
        for job_id, work in list(running.items()):
            work.tokens, work.new_tokens = work.tokens + 1, work.new_tokens + 1
            if work.new_tokens == TRIAL_TOKENS:
                order.clear(job_id)
            if work.tokens == TOKENS:
                work.is_over = True
                del running[job_id]
                order.release(job_id)


@given(st.data(), st.integers(2, 8), st.integers(0, TOKENS - 1))
def test_only_the_poisoned_job_fails(data: st.DataObject, count: int, kills_at: int) -> None:
    poisoned = JobId(f"job-{data.draw(st.integers(0, count - 1))}")
    works = {
        job_id: Work(fold(job_id, (submitted(),)), kills_at if job_id == poisoned else None)
        for job_id in (JobId(f"job-{number}") for number in range(count))
    }
    for _ in range(LIVES_MAX):
        open_jobs = [job_id for job_id, work in works.items() if not work.is_over]
        if not open_jobs:
            break
        live(works, data.draw(st.permutations(open_jobs)))
    assert all(work.is_over for work in works.values()), "workers die for ever"
    failed = {job_id for job_id, work in works.items() if work.tokens < TOKENS}
    assert failed == {poisoned}


@pytest.mark.parametrize(
    ("emitted", "suspicion", "counted_failures"),
    [
        ((0,), Suspicion.TRIED, 0),
        ((3,), Suspicion.NONE, 0),
        ((3, 5), Suspicion.APART, 1),
        ((3, 5, 7), Suspicion.APART, 2),
    ],
)
def test_suspicion_grows_with_the_deaths(
    emitted: tuple[int, ...], suspicion: Suspicion, counted_failures: int
) -> None:
    before = (0, *emitted)
    attempts = [
        replace(started(number), resumed_tokens=before[number - 1])
        for number in range(1, len(emitted) + 1)
    ]
    job = fold(JobId("job-1"), (submitted(), *attempts))
    assert suspicion_of(job, emitted[-1]) is suspicion
    assert counted_failures_now(job) == counted_failures


def test_engine_that_is_lost_counts_as_a_death() -> None:
    job = fold(JobId("job-1"), (submitted(), started(1), LOST))
    assert (job.status, job.counted_failures, job.deaths) == (JobStatus.QUEUED, 0, 1)
    again = fold(
        JobId("job-1"), (submitted(), started(1), LOST, started(2), replace(LOST, attempt=2))
    )
    assert (again.counted_failures, again.deaths) == (1, 2)


def test_attempt_that_could_not_start_is_no_death() -> None:
    job = fold(JobId("job-1"), (submitted(), replace(LOST, attempt=0)))
    assert (job.counted_failures, job.deaths) == (0, 0)
