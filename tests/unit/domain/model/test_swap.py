"""The wanted model and its swaps, decided and folded."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from domain.events.model import (
    ModelConfigured,
    ModelLoadLost,
    ModelServed,
    ModelSwapAdvanced,
    ModelSwapRequested,
    ModelSwapRolledBack,
)
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
from domain.model.wanted_model import (
    DRAIN_S,
    SwapReason,
    SwapState,
    WantedModel,
    WantedModels,
)
from domain.values import WorkerId

OLD, NEW, THIRD = WorkerId("worker-1"), WorkerId("worker-2"), WorkerId("worker-3")
PLACE: Final = "engine-1"


def run(*commands: SwapCommand, state: WantedModel | None = None) -> WantedModel:
    """Apply commands; the instant of an event is its version."""
    state = state or WantedModel()
    for command in commands:
        for event in decide(state, command):
            version = state.version + 1
            state = evolve(state, event, at=f"t{version}", version=version)
    return state


def configure(model: str, *, choice: str = "", place: str = PLACE) -> Configure:
    return Configure(place=place, model=model, choice=choice, swap=f"configured-{model}")


def advance(swap: str, worker: WorkerId, *phases: SwapState) -> tuple[ModelSwapAdvanced, ...]:
    return tuple(ModelSwapAdvanced(swap=swap, worker=worker, phase=phase) for phase in phases)


SERVING: Final = run(configure("a"), ModelServed(worker=OLD, model="a"))
DRAIN: Final = (SwapState.DRAINING, SwapState.SAVING, SwapState.RESTARTING)
REQUEST: Final = RequestSwap(swap="s", model="b")


def test_the_configured_model_is_wanted_at_the_first_start() -> None:
    state = run(configure("a"))
    assert (state.model, state.served, state.open_swap) == ("a", None, None)
    assert decide(state, configure("a")) == ()


def test_a_swap_goes_through_its_phases_to_its_end() -> None:
    state = run(REQUEST, *advance("s", OLD, *DRAIN), state=SERVING)
    assert state.must_restart("a", since=SERVING.since)
    state = run(*advance("s", NEW, SwapState.LOADING), state=state)
    assert not state.must_restart("b", since=state.since)
    state = run(ModelServed(worker=NEW, model="b"), state=state)
    swap = state.get("s")
    assert swap is not None
    assert (state.model, state.served, swap.state) == ("b", "b", SwapState.DONE)
    assert [*swap.times] == [
        SwapState.REQUESTED,
        *DRAIN,
        SwapState.LOADING,
        SwapState.DONE,
    ]
    assert sorted(swap.times.values()) == [*swap.times.values()]
    assert (swap.model, swap.before, swap.drain_s) == ("b", "a", 300.0)


def test_a_failed_load_returns_to_the_model_before() -> None:
    loading = run(REQUEST, *advance("s", NEW, SwapState.LOADING), state=SERVING)
    state = run(RollBack(swap="s", why="broken"), state=loading)
    swap = state.get("s")
    assert swap is not None
    assert (state.model, swap.state, swap.why) == ("a", SwapState.ROLLED_BACK, "broken")
    assert decide(state, RollBack(swap="s", why="again")) == ()
    assert not state.must_restart("a", since=SERVING.since)
    assert state.must_restart("b", since=loading.since)


def test_a_swap_to_the_same_name_restarts_and_has_nothing_to_return_to() -> None:
    state = run(RequestSwap(swap="s", model="a"), state=SERVING)
    assert state.must_restart("a", since=SERVING.since)
    refused = run(RollBack(swap="s", why="missing"), state=state)
    assert not refused.must_restart("a", since=SERVING.since)
    ended = run(*advance("s", OLD, *DRAIN), state=state)
    assert decide(ended, RollBack(swap="s", why="broken")) == ()
    done = run(
        *advance("s", NEW, SwapState.LOADING), ModelServed(worker=NEW, model="a"), state=state
    )
    assert done.open_swap is None
    assert done.must_restart("a", since=SERVING.since), "another worker has the old weights"
    assert not done.must_restart("a", since=done.since)


def test_a_worker_that_dies_twice_in_the_load_returns_to_the_model_before() -> None:
    state = run(REQUEST, *advance("s", NEW, SwapState.LOADING), state=SERVING)
    assert decide(state, RecordLoss(worker=OLD)) == (), "it was not loading"
    once = run(RecordLoss(worker=NEW), state=state)
    assert once.model == "b"
    assert decide(once, RecordLoss(worker=NEW)) == (), "a death is counted once"
    twice = run(*advance("s", THIRD, SwapState.LOADING), RecordLoss(worker=THIRD), state=once)
    swap = twice.get("s")
    assert swap is not None
    assert (twice.model, swap.state) == ("a", SwapState.ROLLED_BACK)
    assert "died 2 times" in (swap.why or "")


def test_a_later_request_supersedes_and_returns_to_what_last_served() -> None:
    state = run(
        REQUEST,
        *advance("s", OLD, *DRAIN),
        RequestSwap(swap="later", model="c"),
        *advance("s", NEW, SwapState.LOADING),
        state=SERVING,
    )
    first, second = state.swaps
    assert first.state is SwapState.SUPERSEDED
    assert (second.state, second.before) == (SwapState.REQUESTED, "a")
    assert decide(state, ModelServed(worker=NEW, model="b")) == (), "b is not wanted any more"


def test_a_changed_configuration_is_a_swap_and_the_same_one_is_none() -> None:
    swapped = run(
        REQUEST,
        *advance("s", NEW, SwapState.LOADING),
        ModelServed(worker=NEW, model="b"),
        state=SERVING,
    )
    assert decide(swapped, configure("a")) == (), "the last model wins"
    changed = decide(swapped, configure("c"))
    assert [type(event) for event in changed] == [ModelConfigured, ModelSwapRequested]
    assert decide(swapped, configure("c", place="elsewhere")) == (
        ModelConfigured(place="elsewhere", model="c"),
    ), "the first start of another machine changes nothing"


def test_an_explicit_choice_is_a_swap_once() -> None:
    swapped = run(
        REQUEST,
        *advance("s", NEW, SwapState.LOADING),
        ModelServed(worker=NEW, model="b"),
        state=SERVING,
    )
    chosen = run(configure("a", choice="one"), state=swapped)
    assert chosen.open_swap is not None
    assert (chosen.model, chosen.open_swap.reason) == ("a", SwapReason.CONFIGURED)
    assert decide(chosen, configure("a", choice="one")) == (), "a restart of the same command"
    same = decide(swapped, configure("b", choice="two"))
    assert [type(event) for event in same] == [ModelConfigured], "b serves already"


def test_a_model_that_never_served_is_replaced_without_a_swap() -> None:
    state = run(configure("broken"), configure("a"))
    assert (state.model, state.swaps) == ("a", ())


def test_a_request_before_any_model_served_has_no_model_to_return_to() -> None:
    state = run(configure("a"), REQUEST)
    assert decide(state, RollBack(swap="s", why="broken")) == ()


_NAMES = st.sampled_from("abc")
_WORKERS = st.sampled_from([OLD, NEW, THIRD])
_COMMANDS: st.SearchStrategy[SwapCommand] = st.one_of(
    st.builds(configure, _NAMES, choice=st.sampled_from(["", "x", "y"])),
    st.builds(RequestSwap, swap=st.uuids().map(str), model=_NAMES),
    st.builds(RecordLoss, worker=_WORKERS),
    st.builds(ModelServed, worker=_WORKERS, model=_NAMES),
)
_PHASES = st.sampled_from([*DRAIN, SwapState.LOADING])


@st.composite
def histories(draw: st.DrawFn) -> WantedModel:
    state = WantedModel()
    for _ in range(draw(st.integers(0, 25))):
        swap = state.open_swap
        moves: list[st.SearchStrategy[SwapCommand]] = [_COMMANDS]
        if swap is not None:
            moves.append(
                st.builds(ModelSwapAdvanced, swap=st.just(swap.id), worker=_WORKERS, phase=_PHASES)
            )
            moves.append(st.builds(RollBack, swap=st.just(swap.id), why=st.just("broken")))
        state = run(draw(st.one_of(moves)), state=state)
    return state


@given(histories())
def test_every_history_wants_one_model_and_has_one_open_swap_at_most(state: WantedModel) -> None:
    assert all(not swap.state.is_open for swap in state.swaps[:-1])
    if state.version:
        assert state.model is not None or not state.configured
    if state.open_swap is not None:
        assert state.model == state.open_swap.model
        assert not state.must_restart(state.open_swap.model, since=state.since)
    for swap in state.swaps:
        if swap.state is SwapState.ROLLED_BACK:
            assert swap.why


def test_events_of_a_swap_name_it_its_models_and_the_worker() -> None:
    open_swap = run(REQUEST, *advance("s", NEW, SwapState.LOADING), state=SERVING)
    (back,) = decide(open_swap, RollBack(swap="s", why="it does not fit"))
    assert back == ModelSwapRolledBack(swap="s", model="b", before="a", reason="it does not fit")
    (lost,) = decide(open_swap, RecordLoss(worker=NEW))
    assert lost == ModelLoadLost(swap="s", worker=NEW)
    (served,) = decide(open_swap, ModelServed(worker=NEW, model="b"))
    assert served == ModelServed(worker=NEW, model="b", swap="s")
    (first,) = decide(run(configure("a")), ModelServed(worker=OLD, model="a"))
    assert first == ModelServed(worker=OLD, model="a", swap=None)
    assert decide(SERVING, ModelServed(worker=NEW, model="a")) == (), "it is served already"
    assert decide(open_swap, ModelServed(worker=OLD, model="b")) == (), "it does not load"


def test_configured_model_that_changed_is_a_swap_of_its_own_id() -> None:
    configured, requested = decide(SERVING, configure("b"))
    assert configured == ModelConfigured(place=PLACE, model="b", choice="")
    assert requested == ModelSwapRequested(
        swap="configured-b",
        model="b",
        before="a",
        reason=SwapReason.CONFIGURED,
        drain_s=DRAIN_S,
        place="",
    )
    chosen = decide(SERVING, configure("a", choice="c1"))
    assert chosen == (ModelConfigured(place=PLACE, model="a", choice="c1"),)


def test_phase_of_another_swap_changes_nothing() -> None:
    open_swap = run(REQUEST, state=SERVING)
    (other,) = advance("older", OLD, SwapState.DRAINING)
    assert decide(open_swap, other) == ()
    assert decide(SERVING, other) == ()


def test_superseded_swap_has_the_instant_of_the_next_request() -> None:
    state = run(REQUEST, RequestSwap(swap="t", model="c"), state=SERVING)
    swap, version = state.get("s"), state.version
    assert swap is not None
    assert swap.times[SwapState.SUPERSEDED] == f"t{version}"
    assert state.since == version
    assert [one.id for one in state.swaps] == ["s", "t"]


def test_each_place_has_the_version_of_the_stream_and_the_instants_of_its_events() -> None:
    own = ModelSwapRequested(
        swap="p", model="b", before="a", reason="request", drain_s=1.0, place="here"
    )
    state = evolve_all(WantedModels(), own, at="t1", version=1)
    assert (state.version, state.at("here").version, state.default.version) == (1, 1, 0)
    moved = ModelSwapAdvanced(swap="p", worker=NEW, phase=SwapState.DRAINING)
    state = evolve_all(state, moved, at="t2", version=2)
    swap = state.at("here").get("p")
    assert swap is not None
    assert swap.times == {SwapState.REQUESTED: "t1", SwapState.DRAINING: "t2"}
    assert (state.version, state.at("here").version, state.default.version) == (2, 2, 2)
    again = evolve_all(state, replace(own, swap="q"), at="t3", version=3)
    assert [one.id for one in again.at("here").swaps] == ["p", "q"]


def test_earlier_swaps_stay_as_they_are_while_the_last_one_advances() -> None:
    state = SERVING
    for number, model in enumerate("bcd"):
        worker = WorkerId(f"worker-{number}")
        swap = f"s-{number}"
        state = run(
            RequestSwap(swap=swap, model=model),
            *advance(swap, worker, SwapState.LOADING),
            ModelServed(worker=worker, model=model),
            state=state,
        )
    assert [(swap.id, swap.state) for swap in state.swaps] == [
        (f"s-{number}", SwapState.DONE) for number in range(3)
    ]


def test_each_death_in_a_load_counts_once() -> None:
    loading = run(REQUEST, *advance("s", NEW, SwapState.LOADING), state=SERVING)
    assert loading.open_swap is not None
    lost = run(RecordLoss(worker=NEW), state=loading)
    assert lost.open_swap is not None
    assert (loading.open_swap.losses, lost.open_swap.losses) == (0, 1)
    assert lost.open_swap.loading == frozenset()


def test_a_first_model_is_wanted_from_the_version_of_its_configuration_on() -> None:
    assert run(configure("a")).since == 1
    assert run(configure("a"), configure("b")).since == 2
