"""Swaps that waiting jobs cause."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import pytest

from domain.chat.embedding import EMBEDDINGS_PROTOCOL
from domain.engine.presence import LoadedModels
from domain.engine.workers import ControlTopic, TurnState, WorkerPulse
from domain.errors import ModelNotLoaded, QueueUnavailable
from domain.events.model import ModelServed, ModelSwapAdvanced
from domain.model.swap import (
    Configure,
    RollBack,
)
from domain.model.swaps import FAILED_S, ModelSwaps, OnDemandRules, OnDemandSwaps
from domain.model.wanted_model import SwapState
from domain.values import JobId, WorkerId
from tests.support.builders.job_world import JobWorld

WORKER = WorkerId("w")
RULES = OnDemandRules(residence_min_s=60, wait_max_s=300)


class World(JobWorld):
    """A worker with the model ``day``, and jobs."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.swaps = ModelSwaps(log=self.log, ids=self.ids)
        self.models = LoadedModels(self.broker.pulses, self.clock, swaps_on_demand=True)
        self.on_demand = OnDemandSwaps(
            views=self.log.views,
            models=self.models,
            swaps=self.swaps,
            signals=self.cancellation.signals,
            clock=self.clock,
            rules=RULES,
        )
        self.swaps.apply(Configure(place="here", model="day", choice="", swap="swap-0"))
        self.swaps.apply(ModelServed(worker=WORKER, model="day"))
        self.have("day")
        return self

    def have(self, model: str, *, running: tuple[JobId, ...] = ()) -> None:
        """Let the worker have a model."""
        turns = TurnState(
            slots=4, interactive_reserved=0, running=running, lines=(), passed_batch=0
        )
        pulse = WorkerPulse(
            worker=WORKER, pid=1, state="ready", model=None, target=model, turns=turns
        )
        self.broker.pulses.beat(pulse)
        self.clock.advance(1)

    def ask(self, model: str | None, **command: object) -> JobId:
        """Accept a job that is bound to a model."""
        return self.accept(
            command={"bound_model": model, "waits_for_model": True, **command}
        ).job_id

    def serve(self, model: str) -> None:
        """End the open swap."""
        swap = self.swaps.read().open_swap
        assert swap is not None
        loading = ModelSwapAdvanced(swap=swap.id, worker=WORKER, phase=SwapState.LOADING)
        self.swaps.apply(loading)
        self.swaps.apply(ModelServed(worker=WORKER, model=model))
        self.have(model)


@pytest.fixture
def world() -> Iterator[World]:
    with World() as world:
        yield world


def test_an_idle_model_yields_after_its_residence(world: World) -> None:
    world.ask("night")
    assert world.on_demand.swap_if_due() is None
    world.clock.advance(60)
    swap = world.on_demand.swap_if_due()
    assert swap is not None
    assert (swap.model, swap.before, swap.reason) == ("night", "day", "on_demand")
    assert world.on_demand.swap_if_due() is None  # one at a time


@pytest.mark.parametrize("model", [None, "day"])
def test_the_work_of_the_loaded_model_goes_first_for_a_while(
    world: World, model: str | None
) -> None:
    world.ask(model)
    world.ask("night")
    world.clock.advance(299)
    assert world.on_demand.swap_if_due() is None
    world.clock.advance(1)
    assert world.on_demand.swap_if_due() is not None


def test_a_job_that_wants_vectors_causes_no_swap(world: World) -> None:
    world.ask("night", protocol=EMBEDDINGS_PROTOCOL)
    world.clock.advance(60)
    assert world.on_demand.swap_if_due() is None


def test_running_jobs_count_as_work(world: World) -> None:
    world.ask("night")
    world.have("day", running=(JobId("job-1"),))
    world.clock.advance(100)
    assert world.on_demand.swap_if_due() is None
    world.have("day")
    assert world.on_demand.swap_if_due() is not None


def test_jobs_that_follow_the_loaded_model_cause_no_swap(world: World) -> None:
    world.ask(None)
    world.clock.advance(1000)
    assert world.on_demand.swap_if_due() is None


def test_a_wait_counts_from_when_the_model_left(world: World) -> None:
    world.ask("day")
    world.clock.advance(1000)
    world.ask("night")
    world.clock.advance(300)
    assert world.on_demand.swap_if_due() is not None
    world.serve("night")
    world.clock.advance(61)
    world.ask("night")
    assert world.on_demand.swap_if_due() is None  # the old job of day waits again from now on
    world.clock.advance(300)
    swap = world.on_demand.swap_if_due()
    assert swap is not None
    assert swap.model == "day"


def test_a_model_that_could_not_be_loaded_is_left_alone_for_a_while(world: World) -> None:
    world.ask("night")
    world.clock.advance(60)
    swap = world.on_demand.swap_if_due()
    assert swap is not None
    world.swaps.apply(RollBack(swap=swap.id, why="too large"))
    world.clock.advance(FAILED_S - 1)
    assert world.on_demand.swap_if_due() is None
    world.clock.advance(1)
    assert world.on_demand.swap_if_due() is not None


def test_a_model_that_failed_holds_up_no_other(world: World) -> None:
    for model in ("night", "other"):
        world.ask(model)
    world.clock.advance(60)
    swap = world.on_demand.swap_if_due()
    assert swap is not None
    world.swaps.apply(RollBack(swap=swap.id, why="too large"))
    again = world.on_demand.swap_if_due()
    assert again is not None
    assert {swap.model, again.model} == {"night", "other"}


def test_a_wait_counts_from_its_beginning_whatever_models_were_replaced_since(
    world: World,
) -> None:
    world.ask("third")
    world.clock.advance(1)
    requested = world.swaps.request("night")
    assert requested is not None
    world.serve("night")
    world.ask("night")
    world.clock.advance(297)
    assert world.on_demand.swap_if_due() is None
    world.clock.advance(1)
    swap = world.on_demand.swap_if_due()
    assert swap is not None
    assert swap.model == "third"


def test_a_swap_that_was_rolled_back_replaced_no_model(world: World) -> None:
    world.ask("night")
    world.clock.advance(300)
    assert world.swaps.request("night") is not None
    world.serve("night")
    swap = world.swaps.request("other")
    assert swap is not None
    world.swaps.apply(RollBack(swap=swap.id, why="too large"))
    world.ask("day")
    world.clock.advance(300)
    again = world.on_demand.swap_if_due()
    assert again is not None
    assert again.model == "day"


def test_workers_learn_of_a_swap_and_a_broker_that_is_away_stops_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.ask("night")
    world.clock.advance(60)
    nudged: list[ControlTopic] = []

    def nudge(topic: ControlTopic) -> None:
        nudged.append(topic)
        raise QueueUnavailable("the broker is down")

    monkeypatch.setattr(world.on_demand.signals, "nudge", nudge)
    assert world.on_demand.swap_if_due() is not None
    assert nudged == [ControlTopic.MODELS]


def test_a_swap_that_a_user_requested_is_not_superseded(world: World) -> None:
    requested = world.swaps.request("other")
    assert world.swaps.request_on_demand("night") is None
    assert world.swaps.read().open_swap == requested


def test_requests_wait_for_a_model_that_is_swapped_to(world: World) -> None:
    world.models.require("night")
    with pytest.raises(ModelNotLoaded):
        LoadedModels(world.broker.pulses, world.clock).require("night")
