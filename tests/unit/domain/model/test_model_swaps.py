"""What a request for a model records, and whose wanted model it changes."""

from __future__ import annotations

import pytest

from domain.log.record import RecordedEvent
from domain.model.swap import Configure
from domain.model.swaps import ModelSwaps
from domain.model.wanted_model import DRAIN_S, MODELS_STREAM, SwapReason
from tests.support.fakes.event_log import InMemoryEventLog
from tests.support.fakes.time import FakeClock, SequentialIds


@pytest.fixture
def swaps() -> ModelSwaps:
    return ModelSwaps(log=InMemoryEventLog(FakeClock()), ids=SequentialIds())


def last(swaps: ModelSwaps) -> RecordedEvent:
    return swaps.log.load(MODELS_STREAM)[-1]


def test_request_records_its_terms_and_the_request_that_led_to_it(swaps: ModelSwaps) -> None:
    swap = swaps.request(
        "night",
        drain_s=5.0,
        place="here",
        reason=SwapReason.CONFIGURED,
        correlation_id="req-1",
    )
    assert (swap.model, swap.drain_s, swap.place) == ("night", 5.0, "here")
    assert dict(last(swaps).data) == {
        "swap": swap.id,
        "model": "night",
        "before": None,
        "reason": "configured",
        "drain_s": 5.0,
        "place": "here",
    }
    assert last(swaps).correlation_id == "req-1"


def test_request_without_terms_is_one_for_all_workers(swaps: ModelSwaps) -> None:
    swap = swaps.request("night")
    assert swap.id.startswith("swap-")
    assert (swap.reason, swap.drain_s, swap.place) == ("request", DRAIN_S, "")
    assert last(swaps).correlation_id == last(swaps).event_id


def test_request_for_a_place_changes_the_wanted_model_there_alone(swaps: ModelSwaps) -> None:
    swaps.request("day")
    own = swaps.request("night", place="here")
    assert [swaps.read(place).model for place in ("here", "there", "")] == ["night", "day", "day"]
    assert swaps.read("here").get(own.id) == own
    assert swaps.read().get(own.id) is None
    swaps.request("day")
    assert swaps.read("here").model == "day"


def test_command_decides_on_the_wanted_model_of_its_place(swaps: ModelSwaps) -> None:
    swaps.request("day")
    swaps.request("night", place="here")
    configure = Configure(place="here", model="night", choice="", swap="swap-9")
    state = swaps.apply(configure, place="here", correlation_id="req-9")
    assert state.model == "night"
    assert last(swaps).correlation_id == "req-9"
    again = Configure(place="here", model="night", choice="2", swap="swap-10")
    assert swaps.apply(again, place="here").open_swap == state.open_swap
    assert last(swaps).correlation_id == last(swaps).event_id


def test_jobs_ask_for_no_model_while_a_swap_is_open(swaps: ModelSwaps) -> None:
    wanted = swaps.request_on_demand("night")
    assert wanted is not None
    assert (wanted.model, wanted.reason) == ("night", SwapReason.ON_DEMAND)
    assert swaps.request_on_demand("day") is None
    assert swaps.read().model == "night"
