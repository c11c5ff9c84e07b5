"""The timeline of a job, with the losses of the workers that took it."""

from __future__ import annotations

from dataclasses import replace

from domain.audit.timeline import Timeline, build_timeline, read_timeline
from domain.events.worker import WorkerLost
from domain.values import JobId, StreamName, WorkerId
from tests.support.builders.job_events import (
    completed,
    recorded_at,
    started,
    submitted,
    worker_event,
)
from tests.support.builders.log_events import append
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock

JOB = JobId("job-1")


class _World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.log = InMemoryEventLog(self.clock)

    def lose(self, worker: str) -> None:
        append(self.log, worker, WorkerLost(worker=WorkerId(worker), pid=7))

    def start(self, attempt: int, worker: str) -> None:
        append(self.log, JOB, replace(started(attempt), worker=WorkerId(worker)))

    def timeline(self) -> Timeline:
        found = read_timeline(self.log, JOB, payloads=self.log)
        assert found is not None
        return found

    def lost_after_ms(self) -> list[float]:
        return [step.after_ms for step in self.timeline().steps if step.what == "lost"]


def test_the_timeline_of_a_job_is_that_of_its_events() -> None:
    world = _World()
    append(world.log, "job-2", submitted())
    append(world.log, JOB, submitted(), started())
    world.clock.advance(2)
    append(world.log, JOB, completed())
    append(world.log, "job-2", started())
    assert world.timeline() == build_timeline(world.log.load(StreamName(JOB)))
    assert (world.timeline().job, world.timeline().total_ms) == (JOB, 2000)


def test_there_is_no_timeline_of_an_unknown_job_or_of_another_stream() -> None:
    world = _World()
    append(world.log, "worker-1", worker_event())
    assert read_timeline(world.log, JOB, payloads=world.log) is None
    assert read_timeline(world.log, JobId("worker-1"), payloads=world.log) is None


def test_each_attempt_is_lost_when_its_worker_was_found_dead() -> None:
    world = _World()
    append(world.log, JOB, submitted())
    world.start(1, "worker-1")
    world.clock.advance(3)
    world.lose("worker-1")
    world.clock.advance(2)
    world.start(2, "worker-2")
    world.clock.advance(1)
    world.lose("worker-2")
    world.clock.advance(4)
    world.start(3, "worker-3")
    assert world.lost_after_ms() == [3000, 6000]


def test_only_the_loss_of_the_worker_of_an_attempt_counts() -> None:
    world = _World()
    append(world.log, JOB, submitted())
    world.lose("worker-9")
    world.start(1, "worker-1")
    world.clock.advance(1)
    append(world.log, "worker-1", worker_event())
    world.clock.advance(1)
    world.lose("worker-9")
    world.lose("worker-1")
    world.clock.advance(5)
    world.start(2, "worker-2")
    assert world.lost_after_ms() == [2000]


def test_a_worker_that_was_found_dead_twice_was_lost_the_first_time() -> None:
    world = _World()
    append(world.log, JOB, submitted())
    world.start(1, "worker-1")
    world.clock.advance(2)
    world.lose("worker-1")
    world.clock.advance(1)
    world.lose("worker-1")
    world.clock.advance(4)
    world.start(2, "worker-2")
    assert world.lost_after_ms() == [2000]


def test_events_that_the_log_no_longer_has_come_from_the_archive() -> None:
    world = _World()
    world.clock.advance(3)
    world.lose("worker-1")
    archived = recorded_at((0, submitted()), (1, started()), (5, started(2)), (9, completed(2)))
    found = read_timeline(world.log, JOB, payloads=world.log, archived=archived)
    assert found is not None
    assert [(step.what, step.after_ms) for step in found.steps if step.position is not None] == [
        ("accepted", 0),
        ("attempt", 1000),
        ("attempt", 5000),
        ("completed", 9000),
    ]
    assert [step.after_ms for step in found.steps if step.what == "lost"] == [3000]


def test_events_of_the_log_are_preferred_to_those_of_the_archive() -> None:
    world = _World()
    append(world.log, JOB, submitted(), started())
    found = read_timeline(
        world.log, JOB, payloads=world.log, archived=recorded_at((0, submitted()))
    )
    assert found is not None
    assert [step.what for step in found.steps] == ["accepted", "attempt"]
