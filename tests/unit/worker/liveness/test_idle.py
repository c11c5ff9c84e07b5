"""When a model is unloaded, and when it is needed again."""

from __future__ import annotations

import pytest

from domain.values import JobId, ModelCard, StreamName, WorkerId
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds
from worker.active_jobs import ActiveJobs
from worker.liveness.idle import IdleModel, unloaded_by
from worker.recording.worker_event_recorder import WorkerEventRecorder

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
