"""Load, decide, append: what an event refers to, and what a concurrent append changes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from domain.chat.items import Failed
from domain.errors import ConcurrencyConflict, JobNotFound
from domain.events.job import JobCancelRequested, JobRetried
from domain.job.commit import commit, end_own_attempt, load_job
from domain.job.decisions import JobProposal, failed_attempt
from domain.job.state import Job
from domain.log.folded_stream import TRIES_MAX
from domain.values import JobId, JobStatus, StreamName, WorkerId
from tests.support.builders.job_events import started
from tests.support.builders.job_world import JobWorld
from tests.support.fakes.conflicts import ConflictingAppends

BROKEN = Failed(error="engine_failure", message="gone", retryable=False)


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld() as world:
        yield world


def run(world: JobWorld, job_id: JobId, command: JobProposal) -> Job:
    return commit(job_id, command, log=world.log, ids=world.ids)


def test_each_event_of_a_decision_names_the_one_before_and_the_request(world: JobWorld) -> None:
    job_id = world.accept("hi", command={"correlation_id": "req-7", "attempts_max": 1}).job_id
    run(world, job_id, started())
    run(world, job_id, failed_attempt(attempt=1, failure=BROKEN))
    events = world.log.load(StreamName(job_id))
    assert [one.type for one in events] == [
        "JobSubmitted",
        "AttemptStarted",
        "AttemptFailed",
        "JobFailed",
    ]
    assert {one.correlation_id for one in events} == {"req-7"}
    assert [one.causation_id for one in events[1:]] == [one.event_id for one in events[:-1]]


def test_loaded_job_has_the_facts_of_its_first_and_its_last_event(world: JobWorld) -> None:
    job_id = world.accept("hi", command={"correlation_id": "req-7"}).job_id
    accepted = world.clock.now()
    world.clock.advance(5)
    run(world, job_id, started())
    loaded, events = load_job(job_id, log=world.log), world.log.load(StreamName(job_id))
    assert loaded.job.status is JobStatus.RUNNING
    assert loaded.job.correlation_id == "req-7"
    assert loaded.job.created_at == events[0].recorded_at
    assert loaded.job.created_at.startswith(accepted.strftime("%Y-%m-%dT%H:%M:%S"))
    assert list(loaded.recorded) == list(events)


def test_an_attempt_that_its_own_worker_left_ends_before_the_next_one(world: JobWorld) -> None:
    job_id = world.submit()
    run(world, job_id, started())
    loaded = load_job(job_id, log=world.log)
    assert loaded.job.started is not None
    worker = loaded.job.started.worker
    other = end_own_attempt(loaded, WorkerId("other"), log=world.log, ids=world.ids)
    assert other is loaded
    ended = end_own_attempt(loaded, worker, log=world.log, ids=world.ids).job
    assert (ended.status, ended.deaths_without_progress) == (JobStatus.QUEUED, 0)
    assert world.types(job_id)[-1] == "AttemptFailed"


def test_unknown_job_is_no_job(world: JobWorld) -> None:
    with pytest.raises(JobNotFound):
        load_job(JobId("job-0"), log=world.log)


def test_command_that_changes_nothing_appends_nothing(world: JobWorld) -> None:
    job_id = world.submit()
    assert commit(job_id, lambda _: None, log=world.log, ids=world.ids) == world.job(job_id)
    run(world, job_id, JobCancelRequested(reason="api"))
    run(world, job_id, JobCancelRequested(reason="api"))
    assert world.types(job_id) == ["JobSubmitted", "JobCancelRequested"]


def test_decision_is_made_again_after_concurrent_appends(world: JobWorld) -> None:
    job_id = world.submit()
    conflicts, seen = ConflictingAppends(world.log, TRIES_MAX - 1), list[JobStatus]()

    def command(job: Job) -> JobProposal:
        seen.append(job.status)
        return JobCancelRequested(reason="api")

    after = commit(job_id, command, log=world.log, ids=world.ids)
    assert after.cancel_requested
    assert after == world.job(job_id)
    assert (conflicts.tries, len(seen)) == (TRIES_MAX, TRIES_MAX)


def test_writer_that_loops_is_an_error(world: JobWorld) -> None:
    job_id = world.submit()
    conflicts = ConflictingAppends(world.log, TRIES_MAX)
    with pytest.raises(ConcurrencyConflict):
        run(world, job_id, JobCancelRequested(reason="api"))
    assert conflicts.tries == TRIES_MAX
    assert world.types(job_id) == ["JobSubmitted"]


def test_retry_records_who_asked_for_it(world: JobWorld) -> None:
    job_id = world.submit()
    run(world, job_id, failed_attempt(attempt=0, failure=BROKEN))
    run(world, job_id, JobRetried(reason="operator"))
    last = world.log.load(StreamName(job_id))[-1]
    assert (last.type, last.data["reason"]) == ("JobRetried", "operator")
