"""Which models the live workers have, and what of that may be out of date."""

from __future__ import annotations

from typing import Any

import pytest

from domain.engine.presence import FRESH_S, LoadedModels, model_of
from domain.engine.workers import TurnState, WorkerPulse, WorkerState
from domain.errors import ModelNotLoaded
from domain.values import JobId, ModelCard, WorkerId
from tests.support.fakes.broker import FakeBroker
from tests.support.fakes.time import FakeClock


def card(name: str) -> ModelCard:
    return ModelCard(
        id=name,
        fingerprint="f",
        context_length=100,
        description="d",
        created_at="2026-01-01T00:00:00Z",
    )


class World:
    """Workers whose heartbeats expire on demand."""

    def __init__(self) -> None:
        self.broker, self.clock = FakeBroker(), FakeClock()
        self.models = LoadedModels(self.broker.pulses, self.clock)

    def beat(self, name: str = "w1", model: str | None = "day", **changes: Any) -> None:
        facts: dict[str, Any] = {
            "state": WorkerState.READY if model else WorkerState.LOADING,
            "model": card(model) if model else None,
        }
        self.broker.pulses.beat(WorkerPulse(worker=WorkerId(name), pid=1, **facts | changes))
        self.clock.advance(FRESH_S)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("model", "target", "name"),
    [(None, None, None), ("day", None, "day"), ("day", "night", "night"), (None, "n", "n")],
)
def test_worker_counts_for_the_model_that_it_will_have(
    model: str | None, target: str | None, name: str | None
) -> None:
    pulse = WorkerPulse(
        worker=WorkerId("w"),
        pid=1,
        state=WorkerState.READY,
        model=card(model) if model else None,
        target=target,
    )
    assert model_of(pulse) == name


def test_model_is_absent_where_every_worker_has_another_one(world: World) -> None:
    assert not world.models.is_absent("night"), "no worker is known yet"
    world.beat("w1", "day")
    assert world.models.is_absent("night")
    assert not world.models.is_absent("day")
    world.beat("w2", None)
    assert not world.models.is_absent("night"), "a worker loads a model that it has not named"


def test_embedding_model_is_never_absent_where_a_worker_computes_with_it(world: World) -> None:
    world.beat("w1", "day", embeds=("vectors",))
    world.beat("w2", "day")
    assert not world.models.is_absent("vectors")
    assert world.models.has_own_line("vectors")
    assert world.models.has_own_line("night")
    assert not world.models.has_own_line("day")


def test_refusal_names_the_model_that_a_ready_worker_has(world: World) -> None:
    world.beat("w1", "day", state=WorkerState.SWAPPING)
    with pytest.raises(ModelNotLoaded, match="no model is"):
        world.models.require("night")
    world.beat("w2", "noon")
    with pytest.raises(ModelNotLoaded, match="noon is"):
        world.models.require("night")
    world.models.require("noon")


def test_request_for_vectors_is_refused_also_where_swaps_serve_others(world: World) -> None:
    world.beat("w1", "day")
    swapping = LoadedModels(world.broker.pulses, world.clock, swaps_on_demand=True)
    swapping.require("night")
    with pytest.raises(ModelNotLoaded):
        swapping.require("night", embeds=True)
    swapping.require("day", embeds=True)


def test_pulses_are_read_again_after_a_quarter_of_a_second(world: World) -> None:
    world.beat("w1", "day")
    assert world.models.is_absent("night")
    world.broker.pulses.fade()
    world.clock.advance(FRESH_S * 0.9)
    assert world.models.is_absent("night"), "what was read is fresh"
    world.clock.advance(FRESH_S * 0.1)
    assert not world.models.is_absent("night")


def test_broker_that_cannot_be_reached_makes_no_model_absent(world: World) -> None:
    world.beat("w1", "day")
    world.broker.down = True
    assert not world.models.is_absent("night")
    assert not world.models.has_running_jobs()
    world.broker.down = False
    assert not world.models.is_absent("night"), "the failed read is as fresh as another"
    world.clock.advance(FRESH_S)
    assert world.models.is_absent("night")


def test_running_jobs_are_those_of_any_live_worker(world: World) -> None:
    world.beat("w1")
    assert not world.models.has_running_jobs()
    world.beat("w2", turns=TurnState(slots=2, interactive_reserved=0))
    assert not world.models.has_running_jobs()
    busy = TurnState(slots=2, interactive_reserved=0, running=(JobId("job-1"),))
    world.beat("w3", turns=busy)
    assert world.models.has_running_jobs()
