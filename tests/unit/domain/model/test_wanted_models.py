"""Workers of one log with different models."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from domain.events.model import ModelServed, ModelSwapAdvanced, ModelSwapRequested, WantedModelEvent
from domain.model.swap import (
    Configure,
    RecordLoss,
    RequestSwap,
    RollBack,
    SwapCommand,
    decide,
    evolve,
    evolve_all,
)
from domain.model.wanted_model import Swap, SwapState, WantedModel, WantedModels
from domain.values import WorkerId

PLACES = ("one", "two")


class World:
    """A stream with the wanted models of two places."""

    def __init__(self) -> None:
        self.state = WantedModels()
        self.events: list[WantedModelEvent] = []

    def apply(self, command: SwapCommand, place: str) -> None:
        """Decide as the worker of a place."""
        for event in decide(self.state.at(place), command):
            self.events.append(event)
            version = len(self.events)
            self.state = evolve_all(self.state, event, at=f"t{version:03}", version=version)

    def alone(self) -> WantedModel:
        """Return the fold of the stream without the requests for one place."""
        state = WantedModel()
        for version, event in enumerate(self.events, 1):
            if not (isinstance(event, ModelSwapRequested) and event.place):
                state = evolve(state, event, at=f"t{version:03}", version=version)
        return state


def request(place: str, model: str, swap: str = "s") -> RequestSwap:
    return RequestSwap(swap=swap, model=model, place=place)


def served() -> World:
    """Return a stream in which both workers serve ``a``."""
    world = World()
    for place in PLACES:
        world.apply(Configure(place=place, model="a", choice="", swap="c"), place)
        world.apply(ModelServed(worker=WorkerId(place), model="a"), place)
    return world


def test_a_request_for_one_place_is_wanted_there_only() -> None:
    world = served()
    world.apply(request("two", "b"), "two")
    assert [world.state.at(place).model for place in PLACES] == ["a", "b"]
    assert world.state.default.open_swap is None
    assert world.state.open_swap is not None
    assert world.state.at("two").must_restart("a", since=1)
    assert not world.state.at("one").must_restart("a", since=1)


def test_a_later_request_for_all_is_wanted_everywhere() -> None:
    world = served()
    world.apply(request("two", "b", "only"), "two")
    world.apply(request("", "c", "all"), "")
    assert [world.state.at(place).model for place in PLACES] == ["c", "c"]
    first = world.state.get("only")
    assert first is not None
    assert first.state is SwapState.SUPERSEDED


def test_the_phases_of_a_swap_of_all_leave_that_of_one_place_alone() -> None:
    world = served()
    world.apply(request("", "b", "all"), "")
    world.apply(request("two", "c", "only"), "two")
    for phase in (SwapState.DRAINING, SwapState.LOADING):
        world.apply(ModelSwapAdvanced(swap="all", worker=WorkerId("one"), phase=phase), "one")
    world.apply(ModelServed(worker=WorkerId("one"), model="b"), "one")
    ended, open_swap = world.state.get("all"), world.state.at("two").open_swap
    assert ended is not None
    assert ended.state is SwapState.DONE
    assert open_swap is not None
    assert (open_swap.id, open_swap.state) == ("only", SwapState.REQUESTED)


_PLACES = st.sampled_from(["", *PLACES])
_NAMES = st.sampled_from("abc")
_WORKERS = st.sampled_from([WorkerId(place) for place in PLACES])
_PHASES = st.sampled_from([SwapState.DRAINING, SwapState.RESTARTING, SwapState.LOADING])


@st.composite
def histories(draw: st.DrawFn) -> World:
    world = served()
    for number in range(draw(st.integers(0, 20))):
        place = draw(_PLACES)
        swap = world.state.at(place).open_swap
        moves: list[st.SearchStrategy[SwapCommand]] = [
            st.builds(request, st.just(place), _NAMES, st.just(f"s{number}")),
            st.builds(ModelServed, worker=_WORKERS, model=_NAMES),
            st.builds(RecordLoss, worker=_WORKERS),
        ]
        if swap is not None:
            moves.append(
                st.builds(ModelSwapAdvanced, swap=st.just(swap.id), worker=_WORKERS, phase=_PHASES)
            )
            moves.append(st.builds(RollBack, swap=st.just(swap.id), why=st.just("broken")))
        world.apply(draw(st.one_of(moves)), place)
    return world


@given(histories())
def test_requests_for_one_place_change_nothing_for_the_others(world: World) -> None:
    assert world.state.default == world.alone()
    for place, wanted in world.state.own.items():
        assert all(not swap.state.is_open for swap in wanted.swaps[:-1])
        assert all(swap.place in {"", place} for swap in wanted.swaps)
        if wanted.open_swap is not None:
            assert wanted.model == wanted.open_swap.model


SWAP = Swap(
    id="s",
    model="b",
    before="a",
    reason="request",
    drain_s=1.0,
    version=3,
    times={SwapState.REQUESTED: "t1"},
)


def test_swap_enters_each_phase_once_but_a_load_again() -> None:
    draining = SWAP.enter(SwapState.DRAINING, "t2")
    assert draining.times == {SwapState.REQUESTED: "t1", SwapState.DRAINING: "t2"}
    assert draining.enter(SwapState.DRAINING, "t3") is draining
    assert draining.enter(SwapState.REQUESTED, "t3") is draining
    loading = draining.enter(SwapState.LOADING, "t4").enter(SwapState.LOADING, "t5")
    assert loading.times[SwapState.LOADING] == "t5"
    done = loading.enter(SwapState.DONE, "t6")
    assert done.enter(SwapState.LOADING, "t7") is done
    assert done.enter(SwapState.ROLLED_BACK, "t7") is done


def test_worker_restarts_for_a_model_that_was_wanted_after_its_load_began() -> None:
    state = WantedModel(version=5, model="b", since=3, swaps=(SWAP,))
    assert not WantedModel().must_restart("b", since=0), "nothing is wanted yet"
    assert state.must_restart("a", since=2)
    assert not state.must_restart("a", since=3), "it has read this wish"
    assert state.must_restart("b", since=2), "it was asked to load it anew"
    over = SWAP.enter(SwapState.SUPERSEDED, "t2")
    assert not replace(state, swaps=(over,)).must_restart("b", since=2)
    later = replace(state, since=4)
    assert not later.must_restart("b", since=3), "it has read that request"


def test_swap_of_any_place_is_found_by_its_id() -> None:
    models = WantedModels(
        default=WantedModel(swaps=(SWAP,)),
        own={"two": WantedModel(swaps=(replace(SWAP, id="t", place="two"),))},
    )
    for swap_id in ("s", "t"):
        swap = models.get(swap_id)
        assert swap is not None
        assert swap.id == swap_id
    assert models.get("u") is None
