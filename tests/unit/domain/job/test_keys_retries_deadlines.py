"""Keys that make a repeat harmless, jobs that begin anew, and jobs that come too late."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from domain.chat.items import Failed
from domain.errors import (
    IdempotencyKeyReused,
    NotRetryable,
    Overloaded,
    PayloadMissing,
    QueueUnavailable,
)
from domain.job.run_attempt import RunResult
from domain.job.submit import idempotency_digest, require_room
from domain.values import JobId, JobStatus, Priority
from tests.support.builders.job_world import JobWorld
from tests.support.polling import scaled, wait_until

ANSWER = "A scripted answer."
KEY = {"idempotency": idempotency_digest("k-1")}
SOON, LATER = "2026-01-01T00:00:05.000000Z", "2026-01-01T00:00:10.000000Z"


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": ANSWER}) as world:
        yield world


def test_same_key_and_request_is_the_same_job(world: JobWorld) -> None:
    first = world.accept(command=KEY)
    second = world.accept(command=KEY | {"correlation_id": "req_2"})
    assert (second.job_id, second.attached) == (first.job_id, "idempotency_key")
    assert world.types(first.job_id) == ["JobSubmitted", "JobAttached"]
    joined = world.log.read_all()[-1].data
    assert (joined["reason"], joined["request_id"]) == ("idempotency_key", "req_2")


def test_same_key_with_another_request_is_refused(world: JobWorld) -> None:
    first = world.accept(command=KEY)
    with pytest.raises(IdempotencyKeyReused, match=first.job_id):
        world.accept("something else", command=KEY)
    assert len(world.log.views.rows) == 1


def test_ended_job_is_given_again_for_its_key(world: JobWorld) -> None:
    first = world.accept(command=KEY)
    world.run(first.job_id)
    assert world.accept(command=KEY).job_id == first.job_id
    assert world.job(first.job_id).status is JobStatus.COMPLETED


def test_equal_requests_without_a_key_are_two_jobs(world: JobWorld) -> None:
    assert world.submit() != world.submit()


def test_posts_of_one_key_at_the_same_time_give_one_job(world: JobWorld) -> None:
    barrier = threading.Barrier(8)

    def post(_: int) -> JobId:
        barrier.wait(scaled(60))
        return world.accept(command=KEY).job_id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(post, range(8)))) == 1
    assert len(world.log.views.rows) == 1


def test_full_queue_refuses_with_the_limit_and_a_time(world: JobWorld) -> None:
    class FixedEta:
        def of(self, job_id: JobId) -> None:
            raise AssertionError(job_id)

        def room_in_s(self, priority: Priority, *, waiting: int, limit: int) -> float:
            assert (priority, waiting, limit) == (Priority.INTERACTIVE, 1, 1)
            return 6.2

        def full_s(self) -> float:
            return 0.0

    views = world.log.views
    require_room(Priority.INTERACTIVE, jobs_max=1, views=views, eta=FixedEta())
    world.submit()
    require_room(Priority.BATCH, jobs_max=1, views=views, eta=FixedEta())
    with pytest.raises(Overloaded, match="interactive queue is full: 1 jobs") as caught:
        require_room(Priority.INTERACTIVE, jobs_max=1, views=views, eta=FixedEta())
    assert caught.value.retry_after_s == 7


def test_cancelled_job_that_is_retried_emits_everything_from_the_beginning(world: JobWorld) -> None:
    job_id = world.submit()
    world.cancel(job_id)
    assert world.retry(job_id).status is JobStatus.QUEUED
    assert world.items(job_id) == ()
    assert world.broker.queue.take() == job_id
    assert world.run(job_id) is RunResult.ENDED
    assert world.text(job_id) == ANSWER
    assert [item.n for item in world.items(job_id)] == list(range(len(world.items(job_id))))
    assert world.log.views.rows[job_id].status is JobStatus.COMPLETED


def test_failed_job_that_is_retried_has_all_its_attempts_again(world: JobWorld) -> None:
    job_id = world.accept(command={"attempts_max": 1}).job_id
    world.engine.runner.step_error = RuntimeError("a kernel failed")
    assert world.run(job_id) is RunResult.ENDED
    assert world.job(job_id).status is JobStatus.FAILED
    world.retry(job_id)
    assert world.run(job_id) is RunResult.ENDED
    assert world.text(job_id) == ANSWER


def test_open_or_answered_job_is_not_retried(world: JobWorld) -> None:
    job_id = world.submit()
    with pytest.raises(NotRetryable, match="is queued"):
        world.retry(job_id)
    world.run(job_id)
    with pytest.raises(NotRetryable, match="is completed"):
        world.retry(job_id)
    assert world.text(job_id) == ANSWER


def test_retry_changes_nothing_while_the_broker_is_away(world: JobWorld) -> None:
    job_id = world.submit()
    world.cancel(job_id)
    world.broker.down = True
    with pytest.raises(QueueUnavailable):
        world.retry(job_id)
    assert world.job(job_id).status is JobStatus.CANCELLED


def test_waiting_job_expires_when_its_start_is_overdue(world: JobWorld) -> None:
    job_id = world.accept(command={"deadline": SOON}).job_id
    assert world.expire() == ()
    world.clock.advance(5)
    assert world.expire() == (job_id,)
    assert world.job(job_id).status is JobStatus.EXPIRED
    assert world.types(job_id)[-1] == "JobExpired"
    (last,) = world.items(job_id)
    assert last.body == Failed(
        error="expired", message=f"the deadline {SOON} passed", retryable=False
    )
    assert world.expire() == ()
    assert world.broker.queue.take() is None


def test_job_that_started_in_time_is_not_late_for_its_start(world: JobWorld) -> None:
    job_id = world.accept(command={"deadline": SOON}).job_id
    world.engine.pause()
    thread = threading.Thread(target=world.run, args=(job_id,))
    thread.start()
    wait_until(lambda: world.job(job_id).attempt > 0)
    world.clock.advance(60)
    assert world.expire() == ()
    world.engine.resume()
    thread.join(scaled(60))
    assert world.job(job_id).status is JobStatus.COMPLETED


def test_running_job_is_stopped_at_its_deadline_and_keeps_what_it_emitted(world: JobWorld) -> None:
    job_id = world.accept(command={"finish_deadline": LATER}).job_id
    world.broker.queue.take()
    world.engine.hold()
    thread = threading.Thread(target=world.run, args=(job_id,))
    thread.start()
    wait_until(lambda: world.job(job_id).attempt > 0)
    world.clock.advance(10)
    assert world.expire() == (job_id,)
    assert world.broker.signals.cancelled == [job_id]
    world.nudge(job_id)
    thread.join(scaled(60))
    view = world.log.views.rows[job_id]
    assert (view.status, view.error) == (JobStatus.EXPIRED, "expired")
    assert view.output is not None
    last = world.items(job_id)[-1].body
    assert isinstance(last, Failed)
    assert last.error == "expired"


def test_late_job_that_reaches_a_worker_first_never_starts(world: JobWorld) -> None:
    job_id = world.accept(command={"deadline": SOON}).job_id
    world.clock.advance(6)
    assert world.run(job_id) is RunResult.ENDED
    assert world.job(job_id).status is JobStatus.EXPIRED
    assert "AttemptStarted" not in world.types(job_id)


def test_expired_job_that_is_retried_has_no_deadline_any_more(world: JobWorld) -> None:
    job_id = world.accept(command={"deadline": SOON, "finish_deadline": LATER}).job_id
    world.clock.advance(60)
    world.expire()
    world.retry(job_id)
    assert world.expire() == ()
    world.run(job_id)
    assert world.job(job_id).status is JobStatus.COMPLETED


def test_last_word_of_the_first_life_that_comes_late_is_no_word_of_the_second(
    world: JobWorld,
) -> None:
    job_id = world.submit()
    world.cancel(job_id)
    (late,) = world.items(job_id)
    world.retry(job_id)
    world.broker.items.publish([(job_id, late)])
    assert world.items(job_id) == ()
    world.run(job_id)
    assert world.text(job_id) == ANSWER
    assert world.items(job_id)[-1].is_terminal


def test_retry_of_an_erased_request_is_refused_and_changes_nothing(world: JobWorld) -> None:
    job_id = world.submit()
    world.cancel(job_id)
    submitted = world.job(job_id).submitted
    assert submitted is not None
    world.log.lose_payload(submitted.request)
    items = world.items(job_id)
    with pytest.raises(PayloadMissing):
        world.retry(job_id)
    assert world.job(job_id).status is JobStatus.CANCELLED
    assert world.items(job_id) == items


def test_retry_that_was_overtaken_by_another_whole_life_is_refused(world: JobWorld) -> None:
    job_id = world.submit()
    world.cancel(job_id)
    forget = world.broker.items.forget

    def overtaken(job: JobId, *, through: int = 0) -> None:
        forget(job, through=through)
        world.broker.items.forget = forget  # type: ignore[method-assign]  # only once
        world.retry(job_id)
        world.cancel(job_id)

    world.broker.items.forget = overtaken  # type: ignore[method-assign,assignment]  # a race
    with pytest.raises(NotRetryable):
        world.retry(job_id)
    assert world.job(job_id).status is JobStatus.CANCELLED
    assert world.items(job_id)[-1].is_terminal


def test_nudge_of_the_first_life_does_not_end_the_second(world: JobWorld) -> None:
    job_id = world.submit()
    world.cancel(job_id)
    world.retry(job_id)
    world.engine.pause()
    thread = threading.Thread(target=world.run, args=(job_id,))
    thread.start()
    wait_until(lambda: world.job(job_id).attempt > 1)
    world.nudge(job_id)
    world.engine.resume()
    thread.join(scaled(60))
    assert world.job(job_id).status is JobStatus.COMPLETED
    assert world.types(job_id).count("AttemptStarted") == 1
    assert world.text(job_id) == ANSWER


def test_generation_that_was_cut_short_without_a_request_is_tried_again(
    world: JobWorld,
) -> None:
    job_id = world.submit()
    world.engine.hold()
    thread = threading.Thread(target=world.run, args=(job_id,))
    thread.start()
    wait_until(lambda: world.job(job_id).attempt > 0)
    world.active.cancel(job_id, through=1)
    thread.join(scaled(60))
    world.engine.resume()
    assert world.job(job_id).status is JobStatus.QUEUED
    assert world.job(job_id).counted_failures == 0
    assert world.run(job_id) is RunResult.ENDED
    assert world.job(job_id).status is JobStatus.COMPLETED
    assert world.text(job_id) == ANSWER
