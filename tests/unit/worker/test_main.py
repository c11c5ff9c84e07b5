"""What a worker process says of itself, and when it gives up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import structlog

from domain.job.ports import WorkerPulse
from ops.settings import Settings
from tests.support.fakes.broker import FakeItems
from tests.support.fakes.engine import FakeEngine
from tests.support.models.engine_probe import ask, submit
from worker.cache_gauge import CacheGauge
from worker.main import WorkerProcess


class Exited(BaseException):
    """Instead of the end of the process."""


class Pulses:
    """``WorkerPulses`` that keeps them."""

    def __init__(self) -> None:
        self.beats: list[WorkerPulse] = []

    def beat(self, pulse: WorkerPulse) -> bool:
        self.beats.append(pulse)
        return len(self.beats) > 1

    def alive(self) -> tuple[WorkerPulse, ...]:
        return tuple(self.beats)


def pulse_of(process: WorkerProcess, engine: FakeEngine) -> WorkerPulse:
    pulses = Pulses()
    process._beat(pulses, engine, CacheGauge(None, lambda *_: None))
    (pulse,) = pulses.beats
    return pulse


@pytest.fixture
def process(tmp_path: Path) -> WorkerProcess:
    return WorkerProcess(Settings(data_dir=tmp_path), structlog.get_logger())


def test_pulse_of_a_ready_worker_names_its_model(process: WorkerProcess) -> None:
    with FakeEngine(FakeItems()) as engine:
        process._state = "ready"
        pulse = pulse_of(process, engine)
    assert pulse.state == "ready"
    assert pulse.model is not None
    assert pulse.model.id == "scripted"


def test_pulse_of_a_loading_worker_names_none(process: WorkerProcess) -> None:
    with FakeEngine(FakeItems()) as engine:
        assert pulse_of(process, engine).model is None


def test_worker_whose_engine_died_ends_so_that_the_next_one_takes_over(
    process: WorkerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr("worker.main.os._exit", leave)
    with FakeEngine(FakeItems()) as engine:
        process._state = "ready"
        engine.runner.step_error = SystemExit("a defect that no handler takes")
        submit(engine, "job-a", ask("x"))
        deadline = time.monotonic() + 60
        while engine.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(Exited) as exited:
            pulse_of(process, engine)
    assert exited.value.args[0] != 0


def test_broker_that_has_forgotten_the_worker_has_its_jobs_looked_for(
    process: WorkerProcess,
) -> None:
    looks: list[str] = []
    process._on_forgotten = lambda: looks.append("look")
    pulses = Pulses()
    gauge = CacheGauge(None, lambda *_: None)
    with FakeEngine(FakeItems()) as engine:
        process._beat(pulses, engine, gauge)
        process._beat(pulses, engine, gauge)
        assert looks == ["look"]
        pulses.beats.clear()
        process._beat(pulses, engine, gauge)
    assert looks == ["look", "look"]
