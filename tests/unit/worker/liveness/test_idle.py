"""When a model is unloaded, and when it is needed again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import pytest

from domain.engine.workers import WorkerPulse
from domain.values import JobId, ModelCard, StreamName, WorkerId
from ops.observe.counter_file import CounterFile
from tests.support.builders.job_events import draft, started
from tests.support.builders.job_world import JobWorld
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds
from worker.liveness.idle import IdleModel, UnloadedModel, unloaded_by
from worker.liveness.pulse import WorkerMetrics
from worker.recording.worker_event_recorder import WorkerEventRecorder
from worker.turn_scheduler import ActiveJobs

JOB = JobId("job-1")
TTL_S = 300.0
CARD = ModelCard(
    id="tiny",
    fingerprint="sha256:a",
    context_length=10,
    description="",
    created_at="2026-01-01T00:00:00Z",
)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def active() -> ActiveJobs:
    return ActiveJobs()


def test_time_counts_from_the_last_release_of_a_job(clock: FakeClock, active: ActiveJobs) -> None:
    idle = IdleModel(TTL_S, active, clock=clock.monotonic)
    with active.claim(JOB):
        clock.advance(10 * TTL_S)
        assert not idle.is_due()
    assert not idle.is_due()
    clock.advance(TTL_S - 1)
    assert not idle.is_due()
    clock.advance(1)
    assert idle.is_due()


def test_job_between_two_checks_is_a_use(clock: FakeClock, active: ActiveJobs) -> None:
    idle = IdleModel(TTL_S, active, clock=clock.monotonic)
    clock.advance(TTL_S)
    with active.claim(JOB):
        pass
    assert not idle.is_due()
    clock.advance(TTL_S)
    idle.record_use()
    assert not idle.is_due()


def test_without_a_limit_a_model_stays(clock: FakeClock, active: ActiveJobs) -> None:
    idle = IdleModel(0, active, clock=clock.monotonic)
    clock.advance(1e9)
    assert not idle.is_due()


@pytest.mark.parametrize("unloaded", ["tiny", None])
def test_only_the_successor_of_an_idle_worker_stays_without_a_model(unloaded: str | None) -> None:
    log, ids = InMemoryEventLog(), SequentialIds()
    first = WorkerId("worker-1")
    assert unloaded_by(None, log) is None
    recorder = WorkerEventRecorder(first, log=log, ids=ids)
    recorder.record_started(CARD, load_ms=1, versions="")
    assert unloaded_by(first, log) is None
    recorder.record_stopped(unloaded=unloaded)
    assert unloaded_by(first, log) == (CARD if unloaded else None)
    types = [event.type for event in log.load(StreamName("model-tiny"))]
    assert types == ["ModelLoaded", *(["ModelUnloaded"] if unloaded else [])]


class Unloaded(JobWorld):
    """A worker without a model, and jobs."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.starts_jobs = True
        self.model = UnloadedModel(
            worker=WorkerId("worker-1"),
            pid=1,
            card=CARD,
            pulses=self.broker.pulses,
            views=self.log.views,
            starts_jobs=lambda: self.starts_jobs,
            counts_wait=lambda: False,
            metrics=WorkerMetrics("place-1", CounterFile(None)),
        )
        return self

    def ask(self, model: str | None) -> JobId:
        """Accept a job that is bound to a model."""
        return self.accept(command={"bound_model": model, "waits_for_model": True}).job_id

    def begin(self, job_id: JobId) -> None:
        """Start the attempt of a job on a worker."""
        stream = StreamName(job_id)
        version = len(self.log.load(stream))
        self.log.append(stream, [draft(started())], expected_version=version)


@pytest.fixture
def unloaded() -> Iterator[Unloaded]:
    with Unloaded() as world:
        yield world


@pytest.mark.parametrize(("bound", "is_needed"), [(None, True), ("tiny", True), ("big", False)])
def test_a_waiting_job_needs_its_model(
    unloaded: Unloaded, bound: str | None, *, is_needed: bool
) -> None:
    assert not unloaded.model.is_needed()
    unloaded.ask(bound)
    assert unloaded.model.is_needed() is is_needed


def test_while_no_job_is_started_a_waiting_one_needs_no_model(unloaded: Unloaded) -> None:
    unloaded.ask(None)
    unloaded.starts_jobs = False
    assert not unloaded.model.is_needed()
    unloaded.starts_jobs = True
    assert unloaded.model.is_needed()


def test_a_running_job_needs_the_model_once_its_worker_has_died(unloaded: Unloaded) -> None:
    unloaded.begin(unloaded.ask(None))
    alive = WorkerPulse(worker=WorkerId("worker-2"), pid=2, state="ready", model=CARD)
    unloaded.broker.pulses.beat(alive)
    unloaded.starts_jobs = False
    assert not unloaded.model.is_needed()
    unloaded.broker.pulses.fade()
    assert unloaded.model.is_needed()
