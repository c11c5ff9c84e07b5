"""What operators change reaches the engine, the turns and the queue of a worker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import structlog

from domain.engine.control import AdmissionState, EngineValues
from domain.engine.operate import EngineControls
from domain.errors import LogUnavailable
from domain.events.worker import EngineTuned
from tests.support.fakes.broker import FakeControlSignals
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import SequentialIds
from worker.control.tuning import SLOTS_AHEAD, WorkerTuning

BY = "request-1"
SETTINGS = EngineValues(max_batch_size=8, batch_window_ms=10, gap_max_ms=100)


class Parts:
    """Engine, turns and queue of a worker, which remember their last values."""

    def __init__(self) -> None:
        self.values: list[EngineValues] = []
        self.slots: list[int] = []
        self.paused: list[bool] = []
        self.shared_unacked_max: int | None = None

    def tune(self, values: EngineValues) -> None:
        self.values.append(values)

    def set_slots(self, slots: int) -> None:
        self.slots.append(slots)

    def set_paused(self, *, paused: bool) -> None:
        self.paused.append(paused)


class World:
    """A worker and an operator at one log."""

    def __init__(self) -> None:
        self.log = InMemoryEventLog()
        self.operator = EngineControls(
            log=self.log, ids=SequentialIds(), signals=FakeControlSignals()
        )

    def worker(self) -> tuple[WorkerTuning, Parts]:
        parts: Any = Parts()
        tuning = WorkerTuning(
            EngineControls(log=self.log, ids=SequentialIds(), signals=FakeControlSignals()),
            SETTINGS,
            engine=parts,
            turns=parts,
            queue=parts,
            logger=structlog.get_logger(),
        )
        return tuning, parts


def test_worker_begins_with_the_settings() -> None:
    tuning, parts = World().worker()
    tuning.apply()
    assert tuning.values == SETTINGS
    assert parts.values == [SETTINGS]
    assert parts.slots == [8 + SLOTS_AHEAD]
    assert parts.paused == [False]


def test_change_is_applied_once_and_by_a_worker_that_starts_later() -> None:
    world = World()
    tuning, parts = world.worker()
    world.operator.tune(lambda now: replace(now, max_batch_size=2), correlation_id=BY)
    tuning.apply()
    tuning.apply()
    wanted = EngineValues(batch_window_ms=10, max_batch_size=2, gap_max_ms=100)
    assert parts.values == [SETTINGS, wanted]
    for one in (parts, world.worker()[1]):
        assert one.values[-1] == wanted
        assert one.slots[-1] == 2 + SLOTS_AHEAD
        assert one.shared_unacked_max == 2 + SLOTS_AHEAD


def test_reset_returns_to_the_settings() -> None:
    world = World()
    world.operator.tune(lambda _: EngineTuned(gap_max_ms=0), correlation_id=BY)
    tuning, parts = world.worker()
    world.operator.tune(lambda _: EngineTuned(), correlation_id=BY)
    tuning.apply()
    assert [one.gap_max_ms for one in parts.values] == [0, 100]


@pytest.mark.parametrize("state", [AdmissionState.PAUSED, AdmissionState.DRAINING])
def test_worker_starts_no_job_while_the_admission_is_not_open(state: AdmissionState) -> None:
    world = World()
    tuning, parts = world.worker()
    world.operator.set_admission(state, correlation_id=BY)
    tuning.apply()
    world.operator.set_admission(AdmissionState.OPEN, correlation_id=BY)
    tuning.apply()
    assert parts.paused == [False, True, False]
    assert set(parts.values) == {SETTINGS}


def test_log_that_is_away_leaves_everything_as_it_is() -> None:
    world = World()
    world.operator.tune(lambda _: EngineTuned(gap_max_ms=0), correlation_id=BY)
    tuning, parts = world.worker()
    world.log.unavailable = True
    with pytest.raises(LogUnavailable):
        world.operator.set_admission(AdmissionState.PAUSED, correlation_id=BY)
    tuning.apply()
    assert len(parts.values) == 1
