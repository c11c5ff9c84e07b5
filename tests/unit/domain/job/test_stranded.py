"""Jobs that are bound to a model which no worker has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from domain.chat.items import Failed, Finished, Started, StreamItem, Text
from domain.engine.presence import LoadedModels
from domain.engine.workers import WorkerPulse
from domain.job.run_attempt import RunResult
from domain.job.stranded import ABSENT_S, REMOVED_S, StrandedJobs
from domain.log.codec import texts_of
from domain.values import JobId, JobStatus, Priority, StreamName, WorkerId
from tests.support.builders.job_world import JobWorld
from tests.unit.domain.job.test_run_attempt import start_attempt

ABSENT_WAIT_MAX_S = 3600.0


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld() as world:
        yield world


@pytest.fixture
def stranded(world: JobWorld) -> StrandedJobs:
    return StrandedJobs(
        views=world.log.views,
        models=LoadedModels(world.broker.pulses, world.clock),
        cancellation=world.cancellation,
        clock=world.clock,
        absent_wait_max_s=ABSENT_WAIT_MAX_S,
    )


def have(world: JobWorld, target: str) -> None:
    """Let the only worker have a model."""
    pulse = WorkerPulse(worker=WorkerId("w"), pid=1, state="ready", model=None, target=target)
    world.broker.pulses.beat(pulse)
    world.clock.advance(1)


def accept(world: JobWorld, *, waits_for_model: bool, model: str = "night") -> JobId:
    command = {"bound_model": model, "waits_for_model": waits_for_model}
    return world.accept(command=command).job_id


def speak(world: JobWorld, job_id: JobId) -> None:
    """Start an attempt that emits a word."""
    start_attempt(world, job_id)
    items = [
        StreamItem(n=0, attempt=1, body=Started(prompt_tokens=2, cached_tokens=0)),
        StreamItem(n=1, attempt=1, body=Text(text="Ha", ids=(72, 97))),
    ]
    world.broker.items.publish([(job_id, item) for item in items])


def ending(world: JobWorld, job_id: JobId) -> Failed | Finished | None:
    return world.job(job_id).ending


def test_job_of_a_waiting_client_fails_after_its_model_was_away(
    world: JobWorld, stranded: StrandedJobs
) -> None:
    job_id = accept(world, waits_for_model=False)
    assert stranded.end_stranded() == ()  # no worker is known
    have(world, "day")
    assert stranded.end_stranded() == ()
    world.clock.advance(ABSENT_S)
    assert stranded.end_stranded() == (job_id,)
    end = ending(world, job_id)
    assert isinstance(end, Failed)
    assert (end.error, end.retryable) == ("model_not_loaded", False)
    assert world.items(job_id)[-1].body == end
    assert world.broker.queue.waiting(Priority.INTERACTIVE, "night") == []
    assert stranded.end_stranded() == ()


def test_job_with_output_ends_with_model_changed(world: JobWorld, stranded: StrandedJobs) -> None:
    job_id = accept(world, waits_for_model=False)
    speak(world, job_id)
    have(world, "day")
    stranded.end_stranded()
    world.clock.advance(ABSENT_S)
    assert stranded.end_stranded() == (job_id,)
    end = ending(world, job_id)
    assert isinstance(end, Failed)
    assert (end.error, end.retryable) == ("model_changed", True)


def test_model_that_comes_back_in_time_ends_no_job(world: JobWorld, stranded: StrandedJobs) -> None:
    job_id = accept(world, waits_for_model=False)
    have(world, "day")
    stranded.end_stranded()
    have(world, "night")
    world.clock.advance(ABSENT_S)
    assert stranded.end_stranded() == ()
    have(world, "day")
    assert stranded.end_stranded() == ()  # the time begins anew
    assert ending(world, job_id) is None


def test_job_in_the_hands_of_a_live_worker_goes_on(world: JobWorld, stranded: StrandedJobs) -> None:
    accept(world, waits_for_model=False)
    assert world.broker.queue.take(model="night") is not None
    have(world, "day")  # it swaps, and finishes what it has
    stranded.end_stranded()
    world.clock.advance(ABSENT_S)
    assert stranded.end_stranded() == ()


def test_waiting_job_expires_after_the_longest_wait(
    world: JobWorld, stranded: StrandedJobs
) -> None:
    job_id = accept(world, waits_for_model=True)
    have(world, "day")
    stranded.end_stranded()
    world.clock.advance(ABSENT_S)
    assert stranded.end_stranded() == ()
    world.clock.advance(ABSENT_WAIT_MAX_S)
    assert stranded.end_stranded() == (job_id,)
    end = ending(world, job_id)
    assert isinstance(end, Failed)
    assert end.error == "expired"
    assert "model night was not loaded in time" in end.message
    view = world.log.views.get(job_id)
    assert view is not None
    assert (view.status, view.error_message) == (JobStatus.EXPIRED, end.message)


def test_waiting_job_of_a_model_that_was_removed_ends_soon(
    world: JobWorld, stranded: StrandedJobs
) -> None:
    registered = ["night"]
    stranded = replace(stranded, is_registered=registered.__contains__)
    job_id = accept(world, waits_for_model=True)
    have(world, "day")
    stranded.end_stranded()
    world.clock.advance(2 * REMOVED_S)
    assert stranded.end_stranded() == ()
    registered.clear()
    assert stranded.end_stranded() == (job_id,)
    end = ending(world, job_id)
    assert isinstance(end, Failed)
    assert (end.error, end.retryable) == ("model_not_found", False)
    assert world.items(job_id)[-1].body == end


def test_waiting_job_expires_at_its_own_deadline(world: JobWorld) -> None:
    deadline = "2026-01-01T00:00:05.000000Z"
    command = {"bound_model": "night", "waits_for_model": True, "deadline": deadline}
    job_id = world.accept(command=command).job_id
    world.clock.advance(6)
    assert world.expire() == (job_id,)
    end = ending(world, job_id)
    assert isinstance(end, Failed)
    assert end.message == f"the deadline {deadline} passed"


def test_waiting_job_whose_worker_is_gone_counts_as_queued(
    world: JobWorld, stranded: StrandedJobs
) -> None:
    job_id = accept(world, waits_for_model=True)
    start_attempt(world, job_id)
    have(world, "day")
    stranded.end_stranded()
    assert world.job(job_id).status is JobStatus.RUNNING
    world.clock.advance(ABSENT_S)
    assert stranded.end_stranded() == ()
    assert world.job(job_id).status is JobStatus.QUEUED
    assert world.types(job_id) == ["JobSubmitted", "AttemptStarted", "AttemptFailed"]
    assert world.broker.queue.waiting(Priority.INTERACTIVE, "night") == [job_id]
    assert world.run(job_id) is RunResult.ENDED


def test_waiting_job_is_retried_after_it_expired(world: JobWorld, stranded: StrandedJobs) -> None:
    job_id = accept(world, waits_for_model=True)
    have(world, "day")
    world.clock.advance(ABSENT_WAIT_MAX_S + 1)
    assert stranded.end_stranded() == (job_id,)
    world.retry(job_id)
    assert world.broker.queue.waiting(Priority.INTERACTIVE, "night") == [job_id]
    job = world.job(job_id)
    assert (job.status, job.model_absent) == (JobStatus.QUEUED, False)


def test_job_that_was_accepted_as_long_ago_as_it_may_wait_still_waits(
    world: JobWorld, stranded: StrandedJobs
) -> None:
    job_id = accept(world, waits_for_model=True)
    have(world, "day")
    stranded.end_stranded()
    world.clock.advance(ABSENT_WAIT_MAX_S - 1)
    assert stranded.end_stranded() == ()
    world.clock.advance(0.001)
    assert stranded.end_stranded() == (job_id,)


def test_ends_name_the_model_and_all_jobs_are_returned(
    world: JobWorld, stranded: StrandedJobs
) -> None:
    jobs = [accept(world, waits_for_model=False) for _ in range(3)]
    spoken = accept(world, waits_for_model=False)
    speak(world, spoken)
    have(world, "day")
    stranded.end_stranded()
    world.clock.advance(ABSENT_S)
    assert set(stranded.end_stranded()) == {*jobs, spoken}
    for job_id, words in ((jobs[0], "model night is not loaded"), (spoken, "model night left")):
        end = ending(world, job_id)
        assert isinstance(end, Failed)
        assert words in end.message
        failed = [one for one in world.log.load(StreamName(job_id)) if one.type == "AttemptFailed"]
        assert failed[-1].data["retryable"] is False


def test_attempt_whose_worker_is_gone_ends_with_the_reason(
    world: JobWorld, stranded: StrandedJobs
) -> None:
    job_id = accept(world, waits_for_model=True)
    start_attempt(world, job_id)
    have(world, "day")
    stranded.end_stranded()
    world.clock.advance(ABSENT_S)
    assert stranded.end_stranded() == ()
    last = world.log.load(StreamName(job_id))[-1]
    assert (last.type, last.data["error"]) == ("AttemptFailed", "engine_lost")
    assert last.data["retryable"] is True
    assert "the worker is gone" in texts_of(last)["message"]
