"""Acceptance, cancellation and recovery, with the broker there and away."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from domain.chat.items import Finished, StreamItem
from domain.chat.request import ChatRequest
from domain.errors import JobNotFound, LogUnavailable
from domain.events.job import JobCancelled, JobCompleted, JobRetried
from domain.job.commit import commit
from domain.job.run_attempt import RunResult
from domain.job.stranded import JobReconciler
from domain.log.record import RecordedEvent
from domain.values import (
    Digest,
    JobId,
    JobStatus,
    Priority,
    StopReason,
    StreamName,
    Timings,
    Usage,
)
from tests.support.builders.job_events import start_command
from tests.support.builders.job_world import JobWorld
from tests.support.fakes.job_queue import QueueTables
from tests.support.polling import scaled, wait_until
from worker.turn_scheduler import cancel_where_recorded

LONG = "word " * 100
START = start_command()


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": LONG}) as world:
        yield world


def test_accepted_request_stands_in_the_log_with_its_payload_and_in_the_queue(
    world: JobWorld,
) -> None:
    job_id = world.submit()
    (submitted,) = world.log.load(StreamName(job_id))
    request = ChatRequest.from_bytes(world.log.get(Digest(submitted.data["request"])))
    assert request.messages[0].content == "hi"
    assert "hi" not in str(submitted.data)
    assert world.broker.queue.waiting(Priority.INTERACTIVE) == [job_id]


def test_request_is_accepted_while_the_broker_is_away_and_queued_on_its_return(
    world: JobWorld,
) -> None:
    world.broker.down = True
    job_id = world.submit()
    assert world.job(job_id).status is JobStatus.QUEUED
    world.broker.down = False
    assert JobReconciler(views=world.log.views, queue=world.broker.queue).reconcile() == (job_id,)
    assert JobReconciler(views=world.log.views, queue=world.broker.queue).reconcile() == ()


def test_nothing_is_queued_when_the_log_refuses(world: JobWorld) -> None:
    world.log.unavailable = True
    with pytest.raises(LogUnavailable):
        world.submit()
    assert world.broker.queue.waiting(Priority.INTERACTIVE) == []


def test_reconciler_leaves_ended_jobs_alone(world: JobWorld) -> None:
    job_id = world.submit()
    world.broker.queue.take()
    world.run(job_id)
    world.broker.queue.ack(job_id)
    assert JobReconciler(views=world.log.views, queue=world.broker.queue).reconcile() == ()


def test_cancelled_while_waiting_ends_at_once_and_never_runs(world: JobWorld) -> None:
    job_id = world.submit()
    assert world.cancel(job_id).status is JobStatus.CANCELLED
    (item,) = world.items(job_id)
    assert isinstance(item.body, Finished)
    assert item.body.stop_reason is StopReason.CANCELLED
    assert world.run(job_id) is RunResult.NOTHING_TO_DO
    assert "AttemptStarted" not in world.types(job_id)


def test_second_cancel_changes_nothing(world: JobWorld) -> None:
    job_id = world.submit()
    world.cancel(job_id)
    before = world.types(job_id)
    assert world.cancel(job_id).status is JobStatus.CANCELLED
    assert world.types(job_id) == before


def test_cancelled_in_hand_is_stopped_by_the_worker_that_reads_the_log(world: JobWorld) -> None:
    job_id = world.submit()
    assert world.broker.queue.take() == job_id
    world.cancel(job_id)
    assert world.broker.signals.cancelled == [job_id]
    assert world.run(job_id) is RunResult.ENDED
    assert world.job(job_id).status is JobStatus.CANCELLED
    assert "AttemptStarted" not in world.types(job_id)


def test_cancelled_while_running_stops_and_keeps_what_it_emitted(world: JobWorld) -> None:
    job_id = world.submit()
    world.broker.queue.take()
    thread = threading.Thread(target=world.run, args=(job_id,))
    world.engine.hold()
    thread.start()
    wait_until(lambda: job_id in world.active.jobs())
    world.cancel(job_id)
    world.nudge(job_id)
    thread.join(scaled(60))
    assert world.job(job_id).status is JobStatus.CANCELLED
    assert LONG.startswith(world.text(job_id))
    assert len(world.text(job_id)) < 100
    assert world.types(job_id)[-1] == "JobCancelled"


def test_wish_whose_nudge_was_lost_is_found_in_the_log(world: JobWorld) -> None:
    job_id = world.submit()
    world.broker.queue.take()
    world.engine.hold()
    thread = threading.Thread(target=world.run, args=(job_id,))
    thread.start()
    wait_until(lambda: world.job(job_id).attempt > 0)
    world.cancel(job_id)
    cancel_where_recorded(world.active, world.log)
    thread.join(scaled(60))
    assert world.job(job_id).status is JobStatus.CANCELLED


def test_wish_is_kept_while_the_broker_is_away(world: JobWorld) -> None:
    job_id = world.submit()
    world.broker.down = True
    assert world.cancel(job_id).cancel_requested
    world.broker.down = False
    assert world.run(job_id) is RunResult.ENDED
    assert world.job(job_id).status is JobStatus.CANCELLED


def test_cancel_of_an_unknown_job_is_refused(world: JobWorld) -> None:
    with pytest.raises(JobNotFound):
        world.cancel(JobId("job-unknown"))


def test_end_that_was_published_meanwhile_is_not_published_twice(world: JobWorld) -> None:
    job_id = world.submit()
    world.broker.queue.take()
    world.cancel(job_id)
    load = world.log.load
    read = False

    def overtaken(stream: StreamName, **options: int) -> tuple[RecordedEvent, ...]:
        nonlocal read
        events = load(stream, **options)
        if not read:
            read = True
            # Redis had lost its data, so the job was queued again and cancelled there.
            world.broker.queue.tables = QueueTables()
            world.broker.queue.enqueue(job_id, Priority.INTERACTIVE)
            confirm = JobCancelled(attempt=0, usage=Usage())
            commit(job_id, confirm, log=world.log, ids=world.ids)
            ended = world.job(job_id)
            assert ended.ending is not None
            last = StreamItem(n=0, attempt=1, body=ended.ending)
            world.broker.items.publish([(job_id, last)])
        return events

    world.log.load = overtaken  # type: ignore[method-assign]  # a race
    world.run(job_id)
    assert len(world.items(job_id)) == 1


@pytest.mark.parametrize("runs_elsewhere", [False, True])
def test_worker_that_read_an_old_request_does_not_cancel_the_retried_job(
    world: JobWorld, *, runs_elsewhere: bool
) -> None:
    job_id = world.submit()
    world.broker.queue.take()
    world.cancel(job_id)
    load = world.log.load
    read = False

    def overtaken(stream: StreamName, **options: int) -> tuple[RecordedEvent, ...]:
        nonlocal read
        events = load(stream, **options)
        if not read:
            read = True
            for command in (JobCancelled(attempt=0, usage=Usage()), JobRetried(reason="api")):
                commit(job_id, command, log=world.log, ids=world.ids)
            if runs_elsewhere:
                commit(job_id, START, log=world.log, ids=world.ids)
        return events

    world.log.load = overtaken  # type: ignore[method-assign]  # a race
    wanted = RunResult.SUPERSEDED if runs_elsewhere else RunResult.REQUEUE
    assert world.run(job_id) is wanted
    assert world.job(job_id).status is (JobStatus.RUNNING if runs_elsewhere else JobStatus.QUEUED)


def test_terminal_item_of_a_waiting_job_shuts_out_an_attempt_that_just_began(
    world: JobWorld,
) -> None:
    job_id = world.submit()
    remove = world.broker.queue.remove

    def overtaken(
        job: JobId, priority: Priority, *, line: str | None = None, model: str | None = None
    ) -> bool:
        # A broker that lost its data had it in two places.
        commit(job, START, log=world.log, ids=world.ids)
        return remove(job, priority, line=line, model=model)

    world.broker.queue.remove = overtaken  # type: ignore[method-assign,assignment]  # a race
    ended = world.cancel(job_id)
    assert ended.ending is not None
    late = StreamItem(n=1, attempt=1, body=ended.ending)
    world.broker.items.publish([(job_id, late)])
    assert len(world.items(job_id)) == 1


def test_cancellation_behind_the_end_publishes_no_end_without_its_text(world: JobWorld) -> None:
    example, job_id = world.submit(), world.submit()
    world.run(example)
    remove = world.broker.queue.remove

    def overtaken(
        job: JobId, priority: Priority, *, line: str | None = None, model: str | None = None
    ) -> bool:
        # A worker ends the job, and the broker loses the items of the answer.
        complete = JobCompleted(
            attempt=1,
            stop_reason=StopReason.END_TURN,
            stop_sequence=None,
            usage=Usage(completion_tokens=2),
            output=world.job(example).output or Digest(""),
            token_hash="",
            timings=Timings(),
        )
        commit(job, START, log=world.log, ids=world.ids)
        commit(job, complete, log=world.log, ids=world.ids)
        return remove(job, priority, line=line, model=model)

    world.broker.queue.remove = overtaken  # type: ignore[method-assign,assignment]  # a race
    assert world.cancel(job_id).status is JobStatus.COMPLETED
    assert world.items(job_id) == ()  # readers find text and end in the log


def test_cancellation_behind_end_and_retry_leaves_the_retried_job_in_its_queue(
    world: JobWorld,
) -> None:
    job_id = world.submit()
    remove = world.broker.queue.remove

    def overtaken(
        job: JobId, priority: Priority, *, line: str | None = None, model: str | None = None
    ) -> bool:
        # Another cancellation ends the job, and its user retries it.
        was_there = remove(job, priority, line=line, model=model)
        commit(job, JobCancelled(attempt=0, usage=Usage()), log=world.log, ids=world.ids)
        world.retry(job)
        remove(job, priority, line=line, model=model)
        return was_there

    world.broker.queue.remove = overtaken  # type: ignore[method-assign,assignment]  # a race
    assert world.cancel(job_id).status is JobStatus.QUEUED
    assert world.broker.queue.waiting(Priority.INTERACTIVE) == [job_id]
    assert world.run(job_id) is RunResult.ENDED


def test_reconciler_enqueues_a_bound_job_into_the_line_of_its_model(world: JobWorld) -> None:
    job_id = world.accept(command={"bound_model": "night"}).job_id
    world.broker.queue.tables = QueueTables()
    reconciler = JobReconciler(views=world.log.views, queue=world.broker.queue)
    assert reconciler.reconcile() == (job_id,)
    assert world.broker.queue.waiting(Priority.INTERACTIVE, "night") == [job_id]
    assert world.broker.queue.waiting(Priority.INTERACTIVE) == []
    assert world.cancel(job_id).status is JobStatus.CANCELLED


@pytest.mark.parametrize(
    ("agent", "owner", "line"), [(None, None, ""), ("a", "mine", "a"), (None, "mine", "key=mine")]
)
def test_job_waits_in_the_same_line_however_it_got_there(
    world: JobWorld, agent: str | None, owner: str | None, line: str
) -> None:
    def lines() -> dict[str, list[JobId]]:
        return world.broker.queue.tables.queues["interactive"].agent_queues

    job_id = world.accept(command={"agent": agent, "owner": owner}).job_id
    assert lines() == {line: [job_id]}
    world.broker.queue.tables = QueueTables()
    JobReconciler(views=world.log.views, queue=world.broker.queue).reconcile()
    assert lines() == {line: [job_id]}
    world.cancellation.put_back(world.job(job_id))
    assert lines() == {line: [job_id]}
    assert world.cancel(job_id).status is JobStatus.CANCELLED
    assert lines() == {}
    world.retry(job_id)
    assert lines() == {line: [job_id]}
    assert world.cancellation.take_waiting(world.job(job_id))
    world.cancellation.put_back(world.job(job_id))
    assert lines() == {line: [job_id]}
