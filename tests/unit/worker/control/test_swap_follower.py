"""What a worker does about the wanted model of the log."""

from __future__ import annotations

from typing import Final

import pytest
import structlog

from domain.errors import LogUnavailable
from domain.events.model import ModelSwapAdvanced
from domain.model.registry import ModelEntry, ModelRegistry
from domain.model.swap import (
    RequestSwap,
)
from domain.model.swaps import ModelSwaps
from domain.model.wanted_model import SwapState
from domain.values import WorkerId
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds
from worker.control.swap_follower import SwapFollower
from worker.engine.ports import ModelLoadError

A: Final = ModelEntry(name="a", source="/a")
B: Final = ModelEntry(name="b", source="/b")
MISSING: Final = ModelEntry(name="missing", source="/missing")
REGISTRY: Final = ModelRegistry([A, B, MISSING])
PLACE: Final = "engine-1"


@pytest.fixture
def swaps() -> ModelSwaps:
    return ModelSwaps(InMemoryEventLog(clock=FakeClock()), SequentialIds())


def check(entry: ModelEntry) -> None:
    if entry is MISSING:
        raise ModelLoadError("there is no directory /missing")


def follower(swaps: ModelSwaps, name: str, first: ModelEntry = A) -> SwapFollower:
    return SwapFollower(
        WorkerId(name),
        swaps=swaps,
        registry=lambda: REGISTRY,
        first=first,
        check=check,
        logger=structlog.get_logger(),
    )


def start(
    swaps: ModelSwaps,
    name: str,
    *,
    first: ModelEntry = A,
    choice: str = "",
    previous: str | None = None,
    place: str = PLACE,
) -> SwapFollower:
    """Return the follower of a worker that has its model loaded."""
    one = begin(swaps, name, first=first, choice=choice, previous=previous, place=place)
    one.has_loaded()
    return one


def begin(
    swaps: ModelSwaps,
    name: str,
    *,
    first: ModelEntry = A,
    choice: str = "",
    previous: str | None = None,
    place: str = PLACE,
) -> SwapFollower:
    """Return the follower of a worker whose load has begun."""
    one = follower(swaps, name, first)
    one.choose(
        place=place, choice=choice, previous=None if previous is None else WorkerId(previous)
    )
    one.begin_load()
    return one


def request(swaps: ModelSwaps, model: str, swap: str = "s") -> None:
    swaps.apply(RequestSwap(swap=swap, model=model))


def test_worker_with_the_wanted_model_stays(swaps: ModelSwaps) -> None:
    one = start(swaps, "one")
    assert (one.model, one.look()) == (A, None)
    assert swaps.read().served == "a"


def test_worker_ends_for_another_model_and_the_next_one_loads_it(swaps: ModelSwaps) -> None:
    one = start(swaps, "one")
    request(swaps, "b")
    swap = one.look()
    assert swap is not None
    for phase in (SwapState.DRAINING, SwapState.SAVING, SwapState.RESTARTING):
        one.enter(phase)
    two = start(swaps, "two", previous="one")
    assert two.model == B
    assert two.look() is None
    done = swaps.read().get("s")
    assert done is not None
    assert done.state is SwapState.DONE


@pytest.mark.parametrize(
    ("model", "why"), [("missing", "no directory"), ("rubbish\n\0", "not registered")]
)
def test_worker_refuses_a_model_that_it_cannot_load(
    swaps: ModelSwaps, model: str, why: str
) -> None:
    one = start(swaps, "one")
    request(swaps, model)
    assert one.look() is None
    swap = swaps.read().get("s")
    assert swap is not None
    assert swap.state is SwapState.ROLLED_BACK
    assert why in (swap.why or "")
    assert one.look() is None


def test_failed_load_rolls_back_and_the_next_worker_has_the_model_before(
    swaps: ModelSwaps,
) -> None:
    start(swaps, "one")
    request(swaps, "b")
    two = begin(swaps, "two")
    assert two.has_failed("broken")
    three = start(swaps, "three", previous="two")
    assert three.model == A
    assert three.look() is None


def test_failed_load_without_a_model_before_ends_the_service(swaps: ModelSwaps) -> None:
    assert not begin(swaps, "one").has_failed("broken")
    start(swaps, "two")
    request(swaps, "a")
    swaps.apply(ModelSwapAdvanced(swap="s", worker=WorkerId("two"), phase=SwapState.DRAINING))
    assert not begin(swaps, "three").has_failed("broken"), "new weights of the same name"


def test_two_deaths_in_the_load_roll_back(swaps: ModelSwaps) -> None:
    start(swaps, "one")
    request(swaps, "b")
    assert begin(swaps, "two", previous="one").model == B
    assert begin(swaps, "three", previous="two").model == B
    assert start(swaps, "four", previous="three").model == A


def test_end_in_order_within_the_load_is_no_death(swaps: ModelSwaps) -> None:
    start(swaps, "one")
    request(swaps, "b")
    for name in ("two", "three", "four"):
        # ``WorkerIdentity.forget`` leaves no previous worker.
        assert begin(swaps, name).model == B


def test_model_that_is_not_registered_any_more_gives_way_to_the_configured_one(
    swaps: ModelSwaps,
) -> None:
    gone = ModelEntry(name="gone", source="/gone")
    start(swaps, "one", first=gone)
    two = start(swaps, "two", first=A)
    assert two.model == A, "the configuration has changed: a swap"
    request(swaps, "gone")
    three = begin(swaps, "three")
    assert three.model == A, "the swap to it rolls back"
    assert three.look() is None


def test_explicit_choice_is_a_swap_and_a_restart_of_it_is_none(swaps: ModelSwaps) -> None:
    start(swaps, "one")
    request(swaps, "b")
    start(swaps, "two")
    assert start(swaps, "three").model == B, "the last model wins"
    assert start(swaps, "four", choice="now").model == A
    request(swaps, "b", "later")
    assert start(swaps, "five", choice="now").model == B


def test_swap_goes_on_while_the_log_cannot_record_its_phases(
    swaps: ModelSwaps, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = start(swaps, "one")
    request(swaps, "b")
    assert one.look() is not None

    def unavailable(*_: object, **__: object) -> None:
        raise LogUnavailable("the disk is full")

    monkeypatch.setattr(swaps.log, "append", unavailable)
    one.enter(SwapState.DRAINING)


def test_request_for_one_worker_restarts_that_one_only(swaps: ModelSwaps) -> None:
    here, there = start(swaps, "one"), start(swaps, "two", place="engine-2")
    swap = swaps.request("b", place="engine-2")
    assert here.look() is None
    assert there.look() == swap
    again = start(swaps, "three", place="engine-2", previous="two")
    assert again.model == B
    assert (swaps.read().model, swaps.read("engine-2").model) == ("a", "b")
    ended = swaps.read_all().get(swap.id)
    assert ended is not None
    assert ended.state is SwapState.DONE
    assert start(swaps, "four", previous="one").model == A
    everywhere = swaps.request("a")
    assert again.look() == everywhere


def test_model_that_one_worker_cannot_load_leaves_it_the_one_before(swaps: ModelSwaps) -> None:
    start(swaps, "one")
    there = start(swaps, "two", place="engine-2")
    swap = swaps.request("missing", place="engine-2")
    assert there.look() is None
    refused = swaps.read_all().get(swap.id)
    assert refused is not None
    assert refused.state is SwapState.ROLLED_BACK
    assert swaps.read("engine-2").model == "a"
