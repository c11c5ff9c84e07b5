"""A delivery while the log or the broker is unavailable."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from domain.errors import LogUnavailable, QueueUnavailable
from domain.values import JobStatus
from tests.support.builders.job_world import JobWorld
from tests.support.fakes.time import FakeClock
from worker.actors import AWAY_PAUSE_MAX_S, _run_deliveries, _run_to_the_end
from worker.engine.emitter import OUTAGE_S_MAX


@pytest.fixture
def world() -> Iterator[JobWorld]:
    with JobWorld({"hi": "Hello!"}) as world:
        yield world


class Refusals:
    """An ``append`` that is refused a few times first."""

    def __init__(self, world: JobWorld, count: int) -> None:
        self.left = count
        self._append = world.log.append
        world.log.append = self  # type: ignore[method-assign]  # a fault

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.left:
            self.left -= 1
            message = "the disk is full"
            raise LogUnavailable(message)
        return self._append(*args, **kwargs)


def test_delivery_is_kept_until_the_log_is_back(world: JobWorld) -> None:
    job_id = world.submit()
    refusals = Refusals(world, 2)
    _run_to_the_end(job_id, world.runner, threading.Event(), lambda _: None)
    assert refusals.left == 0
    assert world.job(job_id).status is JobStatus.COMPLETED


def test_draining_worker_leaves_the_delivery_to_the_next(world: JobWorld) -> None:
    job_id = world.submit()
    Refusals(world, 1)
    draining = threading.Event()
    draining.set()
    with pytest.raises(LogUnavailable):
        _run_to_the_end(job_id, world.runner, draining, lambda _: None)
    assert world.job(job_id).status is JobStatus.QUEUED


class Pauses(threading.Event):
    """A worker that never drains; the broker takes writes again after so many pauses."""

    def __init__(self, world: JobWorld, count: int) -> None:
        super().__init__()
        self.lengths: list[float] = []
        self._world, self._count = world, count

    def wait(self, timeout: float | None = None) -> bool:
        self.lengths.append(timeout or 0.0)
        self._world.broker.refuses_writes = len(self.lengths) < self._count
        return False


def test_broker_that_refuses_writes_delays_a_job_without_an_event(world: JobWorld) -> None:
    job_id = world.accept(command={"attempts_max": 1, "worker_deaths_max": 1}).job_id
    world.broker.refuses_writes = True
    pauses = Pauses(world, 20)
    _run_to_the_end(job_id, world.runner, pauses, pauses.wait)
    assert world.types(job_id) == ["JobSubmitted", "AttemptStarted", "JobCompleted"]
    assert world.text(job_id) == "Hello!"
    assert len(pauses.lengths) == 20
    assert max(pauses.lengths) == AWAY_PAUSE_MAX_S


def test_attempt_whose_first_item_is_refused_is_no_death(world: JobWorld) -> None:
    """The broker refuses writes just after the attempt was recorded, several times in a row."""
    job_id = world.accept(command={"attempts_max": 1, "worker_deaths_max": 1}).job_id
    publish, refusals = world.broker.items.publish, [None] * 4

    def refuse(items: Any) -> None:
        if refusals:
            refusals.pop()
            message = "MISCONF"
            raise QueueUnavailable(message)
        publish(items)

    world.broker.items.publish = refuse  # type: ignore[method-assign]  # a fault
    pauses = Pauses(world, 0)
    _run_to_the_end(job_id, world.runner, pauses, pauses.wait)
    job = world.job(job_id)
    assert (job.status, job.attempt) == (JobStatus.COMPLETED, 5)
    assert (job.deaths, job.deaths_without_progress, job.counted_failures) == (0, 0, 0)
    assert world.text(job_id) == "Hello!"


def test_broker_that_refuses_writes_for_long_costs_a_running_job_no_attempt() -> None:
    clock = FakeClock()
    with JobWorld({"hi": "Hello!"}, clock=clock) as world:
        job_id = world.accept(command={"attempts_max": 1, "worker_deaths_max": 1}).job_id
        publish = world.broker.items.publish
        refused: list[object] = []

        def refuse(items: Any) -> None:
            try:
                publish(items)
            except QueueUnavailable:
                refused.append(items)
                clock.advance(OUTAGE_S_MAX)
                raise
            # The first item is stored, then no other one.
            world.broker.refuses_writes = not refused

        world.broker.items.publish = refuse  # type: ignore[method-assign]  # a fault
        pauses = Pauses(world, 10)
        _run_to_the_end(job_id, world.runner, pauses, pauses.wait)
        job = world.job(job_id)
        assert (job.status, job.counted_failures, job.deaths) == (JobStatus.COMPLETED, 0, 0)
        assert world.types(job_id) == [
            "JobSubmitted",
            "AttemptStarted",
            "AttemptFailed",
            "AttemptStarted",
            "JobCompleted",
        ]
        assert world.text(job_id) == "Hello!"
        assert len(pauses.lengths) >= 10


def test_log_that_refuses_the_end_of_an_attempt_makes_it_no_death(world: JobWorld) -> None:
    job_id = world.accept(command={"attempts_max": 1, "worker_deaths_max": 1}).job_id
    append, is_refused = world.log.append, [False]

    def refuse(stream: Any, drafts: Any, **options: Any) -> Any:
        if not is_refused[0] and drafts[0].event.__class__.__name__ == "JobCompleted":
            is_refused[0] = True
            message = "the disk is full"
            raise LogUnavailable(message)
        return append(stream, drafts, **options)

    world.log.append = refuse  # type: ignore[method-assign]  # a fault
    _run_to_the_end(job_id, world.runner, threading.Event(), lambda _: None)
    job = world.job(job_id)
    assert (job.status, job.attempt, job.deaths) == (JobStatus.COMPLETED, 2, 0)
    assert world.text(job_id) == "Hello!"


class Defect:
    """An engine that raises what no part of the worker expects."""

    def __init__(self, world: JobWorld) -> None:
        self.runner = replace(world.runner, engine=self)  # type: ignore[arg-type]  # a fault

    def card(self) -> None:
        message = "this was closed"
        raise RuntimeError(message)


@pytest.mark.parametrize(
    ("is_ending", "status"), [(False, JobStatus.FAILED), (True, JobStatus.QUEUED)]
)
def test_defect_fails_a_job_with_its_traceback_except_while_the_worker_ends(
    world: JobWorld,
    is_ending: bool,  # noqa: FBT001 - a case
    status: JobStatus,
) -> None:
    job_id, draining = world.submit(), threading.Event()
    if is_ending:
        draining.set()
    with capture_logs() as lines:
        _run_deliveries(Defect(world).runner, draining)(job_id)
    assert world.job(job_id).status is status
    (line,) = [one for one in lines if one["event"] == "attempt_crashed"]
    assert (line["log_level"], line["exc_info"]) == ("error", True)
