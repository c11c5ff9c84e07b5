"""The pulse of a worker process, and its reaction to a dead engine and a forgetful broker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import structlog

from domain.engine.control import AdmissionState, EngineValues
from domain.engine.figures import WorkCounts
from domain.engine.operate import EngineControls
from domain.engine.workers import PulseReply, WorkerPulse, WorkerState
from domain.job.fair_scheduler import TurnOrder
from domain.values import WorkerId
from ops.broker.dramatiq_queue import BlockingRedisBroker
from ops.observe.counter_file import CounterFile
from tests.support.fakes.broker import FakeControlSignals, FakeItems
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import SequentialIds
from tests.support.models.engine_probe import ask, submit
from tests.support.polling import wait_until
from worker.cachestore.cache_gauge import CacheGauge
from worker.control.tuning import WorkerTuning
from worker.liveness.pulse import PulseReporter, WorkerMetrics
from worker.turn_scheduler import TurnScheduler

SLOTS, BATCH = 6, 4


VALUES = EngineValues(batch_window_ms=10, max_batch_size=BATCH, gap_max_ms=100)


class Exited(BaseException):
    """Instead of the end of the process."""


class Pulses:
    """``WorkerPulses`` that keeps them."""

    def __init__(self) -> None:
        self.beats: list[WorkerPulse] = []
        self.is_watched = False

    def beat(self, pulse: WorkerPulse) -> PulseReply:
        self.beats.append(pulse)
        return PulseReply(was_known=len(self.beats) > 1, is_watched=self.is_watched)

    def watch(self) -> None:
        self.is_watched = True

    def alive(self) -> tuple[WorkerPulse, ...]:
        return tuple(self.beats)


def _tuning(engine: FakeEngine, scheduler: TurnScheduler) -> WorkerTuning:
    log = InMemoryEventLog()
    controls = EngineControls(log=log, ids=SequentialIds(), signals=FakeControlSignals())
    controls.set_admission(AdmissionState.PAUSED, correlation_id="request-1")
    return WorkerTuning(
        controls,
        EngineValues(max_batch_size=BATCH, batch_window_ms=10, gap_max_ms=100),
        engine=engine,
        turns=scheduler,
        queue=cast("BlockingRedisBroker", SimpleNamespace(shared_unacked_max=None)),
        logger=structlog.get_logger(),
    )


class World:
    """A reporter and what it reports to."""

    def __init__(self, engine: FakeEngine, state: WorkerState) -> None:
        self.pulses = Pulses()
        self.reconciles: list[str] = []
        scheduler = TurnScheduler(TurnOrder(slots=SLOTS, interactive_reserved=0))
        self.reporter = PulseReporter(
            worker=WorkerId("worker-1"),
            pulses=self.pulses,
            engine=engine,
            gauge=CacheGauge(None, lambda *_: None),
            turns=scheduler.state,
            tuning=_tuning(engine, scheduler),
            on_forgotten=lambda: self.reconciles.append("look"),
            state=lambda: state,
            logger=structlog.get_logger(),
            target=lambda: "a model",
            metrics=WorkerMetrics("place-1", CounterFile(None)),
        )

    def pulse(self) -> WorkerPulse:
        self.reporter.beat()
        (pulse,) = self.pulses.beats
        return pulse


def test_pulse_of_a_ready_worker_names_its_model() -> None:
    with FakeEngine(FakeItems()) as engine:
        pulse = World(engine, WorkerState.READY).pulse()
    assert pulse.state == "ready"
    assert pulse.model is not None
    assert pulse.model.id == "scripted"
    assert pulse.turns is not None
    assert pulse.turns.slots == BATCH
    assert pulse.values == VALUES
    assert pulse.admission is AdmissionState.PAUSED


def test_pulse_of_a_loading_worker_names_none() -> None:
    with FakeEngine(FakeItems()) as engine:
        assert World(engine, WorkerState.LOADING).pulse().model is None


def test_worker_whose_engine_died_ends_so_that_the_next_one_takes_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def leave(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr("worker.liveness.pulse.os._exit", leave)
    with FakeEngine(FakeItems()) as engine:
        engine.runner.step_error = SystemExit("a defect that no handler takes")
        submit(engine, "job-a", ask("x"))
        wait_until(lambda: not engine.is_alive())
        with pytest.raises(Exited) as exited:
            World(engine, WorkerState.READY).pulse()
    assert exited.value.args[0] != 0


def test_broker_that_has_forgotten_the_worker_causes_a_reconciliation() -> None:
    with FakeEngine(FakeItems()) as engine:
        world = World(engine, WorkerState.LOADING)
        world.reporter.beat()
        world.reporter.beat()
        assert world.reconciles == ["look"]
        world.pulses.beats.clear()
        world.reporter.beat()
    assert world.reconciles == ["look", "look"]


def test_rows_travel_at_once_and_only_while_they_are_watched() -> None:
    with FakeEngine(FakeItems()) as engine:
        world = World(engine, WorkerState.READY)
        world.reporter.beat()
        world.pulses.watch()
        world.reporter.beat()
        world.reporter.beat()
        world.pulses.is_watched = False
        world.reporter.beat()
        world.reporter.beat()
    rows = [pulse.rows for pulse in world.pulses.beats]
    assert rows == [None, None, (), (), (), None]
    assert world.pulses.beats[0].counts == WorkCounts()
