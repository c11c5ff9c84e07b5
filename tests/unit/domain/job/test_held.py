"""Jobs that are held outside of their queue until their instant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from domain.audit.timeline import BarKind, bars_of, build_timeline
from domain.errors import Overloaded, RateLimited, StaleAttempt
from domain.events.job import JobCancelRequested, JobReleased
from domain.job.commit import commit
from domain.job.decisions import decide
from domain.job.run_attempt import RunResult
from domain.job.state import fold
from domain.job.submit import HELD_MAX, idempotency_digest, require_hold
from domain.values import JobId, JobStatus, Owner
from tests.support.builders.job_events import recorded_at, started, submitted
from tests.support.builders.job_world import JobWorld

ANSWER = "A scripted answer."
SOON, LATER = "2026-01-01T00:00:05.000000Z", "2026-01-01T00:00:10.000000Z"


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": ANSWER}) as world:
        yield world


def _hold(world: JobWorld, **facts: object) -> JobId:
    return world.accept(command={"start_after": SOON} | facts).job_id


def test_a_held_job_enters_its_queue_at_its_instant(world: JobWorld) -> None:
    accepted = world.accept(command={"start_after": SOON})
    assert accepted.queued
    assert world.due.release_due() == ()
    assert world.broker.queue.take() is None
    world.clock.advance(5)
    assert world.due.release_due() == (accepted.job_id,)
    assert world.broker.queue.take() == accepted.job_id
    assert world.run(accepted.job_id) is RunResult.ENDED
    assert world.text(accepted.job_id) == ANSWER
    assert world.types(accepted.job_id)[:2] == ["JobSubmitted", "JobReleased"]


def test_a_job_is_released_once_after_a_long_sleep(world: JobWorld) -> None:
    job_id = _hold(world)
    world.clock.advance(86_400)
    assert world.due.release_due() == (job_id,)
    assert world.due.release_due() == ()
    assert world.types(job_id) == ["JobSubmitted", "JobReleased"]


def test_a_release_without_the_broker_is_left_to_the_reconciler(world: JobWorld) -> None:
    job_id = _hold(world)
    world.clock.advance(5)
    world.broker.down = True
    assert world.due.release_due() == (job_id,)
    assert world.job(job_id).status is JobStatus.QUEUED


def test_a_held_job_can_be_cancelled_at_once(world: JobWorld) -> None:
    job_id = _hold(world)
    assert world.cancel(job_id).status is JobStatus.CANCELLED
    assert [item.is_terminal for item in world.items(job_id)] == [True]
    world.clock.advance(5)
    assert world.due.release_due() == ()
    assert world.broker.queue.take() is None


def test_a_cancelled_hold_whose_process_died_is_ended(world: JobWorld) -> None:
    job_id = _hold(world)
    commit(job_id, JobCancelRequested(reason="api"), log=world.log, ids=world.ids)
    assert world.due.release_due() == (job_id,)
    assert world.job(job_id).status is JobStatus.CANCELLED


def test_a_held_job_expires_at_its_deadline(world: JobWorld) -> None:
    job_id = _hold(world, start_after=LATER, finish_deadline=SOON)
    world.clock.advance(5)
    assert world.expire() == (job_id,)
    assert world.job(job_id).status is JobStatus.EXPIRED


def test_a_retried_job_does_not_wait_for_its_instant_again(world: JobWorld) -> None:
    job_id = _hold(world)
    world.cancel(job_id)
    assert world.retry(job_id).status is JobStatus.QUEUED
    assert world.broker.queue.take() == job_id


def test_a_repeat_of_its_key_does_not_enqueue_a_held_job(world: JobWorld) -> None:
    key = {"idempotency": idempotency_digest("k"), "start_after": SOON}
    first = world.accept(command=key)
    again = world.accept(command=key)
    assert (again.job_id, again.queued) == (first.job_id, True)
    assert world.broker.queue.take() is None


def test_a_worker_does_not_begin_a_held_job(world: JobWorld) -> None:
    job_id = _hold(world)
    assert world.run(job_id) is RunResult.NOTHING_TO_DO
    assert world.types(job_id) == ["JobSubmitted"]
    with pytest.raises(StaleAttempt):
        decide(world.job(job_id), started())


def test_a_release_is_known_after_it_and_after_a_cancellation() -> None:
    held = submitted(start_after=SOON)
    job = fold(JobId("job-1"), [held])
    assert job.status is JobStatus.HELD
    assert decide(job, JobReleased()) == (JobReleased(),)
    for event in (JobReleased(), JobCancelRequested(reason="api")):
        assert decide(fold(JobId("job-1"), [held, event]), JobReleased()) == ()


def test_the_hold_is_a_bar_of_its_own_and_no_time_in_the_queue() -> None:
    timeline = build_timeline(
        recorded_at((0, submitted(start_after=SOON)), (5, JobReleased()), (7, started()))
    )
    assert [step.what for step in timeline.steps] == ["accepted", "held", "released", "attempt"]
    assert timeline.queued_ms == 2000
    assert [(bar.kind, bar.from_ms, bar.to_ms) for bar in bars_of(timeline)] == [
        (BarKind.HELD, 0, 5000),
        (BarKind.QUEUED, 5000, 7000),
        (BarKind.RUN, 7000, None),
    ]


def test_too_many_held_jobs_are_refused_by_the_limit_and_by_the_share_of_a_key() -> None:
    class Views:
        def __init__(self, held: int, mine: int) -> None:
            self._counts = {None: held, "key": mine}

        def count_held(self, *, owner: str | None = None) -> int:
            return self._counts[owner]

    require_hold(None, Views(HELD_MAX - 1, 0))  # type: ignore[arg-type]  # one of its methods
    with pytest.raises(Overloaded, match="10000 held jobs"):
        require_hold(None, Views(HELD_MAX, 0))  # type: ignore[arg-type]  # one of its methods
    with pytest.raises(RateLimited, match="this key"):
        require_hold(Owner("key"), Views(HELD_MAX - 1, HELD_MAX - 1))  # type: ignore[arg-type]  # one of its methods
