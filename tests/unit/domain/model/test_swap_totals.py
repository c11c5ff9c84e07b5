"""Counts and durations of swaps, folded from their events."""

from __future__ import annotations

from dataclasses import replace

from domain.events.model import (
    ModelLoadLost,
    ModelServed,
    ModelSwapRequested,
    ModelSwapRolledBack,
    WantedModelEvent,
)
from domain.model.swap import SwapTotals
from domain.model.wanted_model import SwapState
from domain.values import WorkerId

WORKER = WorkerId("worker-1")


def requested(swap: str, model: str = "b") -> ModelSwapRequested:
    return ModelSwapRequested(swap=swap, model=model, before="a", reason="request", drain_s=1)


def served(swap: str | None) -> ModelServed:
    return ModelServed(worker=WORKER, model="b", swap=swap)


def rolled_back(swap: str) -> ModelSwapRolledBack:
    return ModelSwapRolledBack(swap=swap, model="b", before="a", reason="no")


def folded(*events: WantedModelEvent, in_steps: bool = False) -> SwapTotals:
    totals = SwapTotals()
    dated = [
        (event, f"2026-01-01T00:00:{second:02d}.500000Z", second + 1)
        for second, event in enumerate(events)
    ]
    for group in [[one] for one in dated] if in_steps else [dated]:
        totals.fold(group)
    return totals


def test_each_swap_ends_once_and_takes_the_time_from_request_to_service() -> None:
    events = (
        served(None),  # a first start is no swap
        requested("1"),
        ModelLoadLost(swap="1", worker=WORKER),
        served("1"),
        served("1"),  # another worker
        requested("2"),
        rolled_back("2"),
        requested("3", "c"),
        requested("4", "d"),
        served("3"),
    )
    for in_steps in (False, True):
        totals = folded(*events, in_steps=in_steps)
        assert totals.ended == {
            SwapState.DONE: 1,
            SwapState.ROLLED_BACK: 1,
            SwapState.SUPERSEDED: 1,
        }
        assert totals.version == len(events)
        assert totals.take_done() == [("b", 2.0)]
        assert totals.take_done() == []


def test_swaps_of_several_workers_go_on_at_once() -> None:
    one, two = requested("1"), replace(requested("2", "c"), place="two")
    totals = folded(one, two, served("2"), served("1"), two, requested("3"))
    assert totals.ended == {SwapState.DONE: 2, SwapState.SUPERSEDED: 1}
