"""Memory in use against the accounts."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from worker.engine.mlx.memory.at_load import TOLERANCE_BYTES_MIN, MemoryWatch

MB = 1 << 20
WEIGHTS, STEP, BUDGET = 1000 * MB, 50 * MB, 400 * MB


def watch(step_bytes: int | None = STEP) -> MemoryWatch:
    return MemoryWatch(
        weights_bytes=WEIGHTS, step_bytes=step_bytes, budget_bytes=BUDGET, peak_bytes=WEIGHTS + STEP
    )


def over(one: MemoryWatch, unknown: int, accounted: int, peak: int = WEIGHTS + STEP) -> int:
    active = WEIGHTS + accounted + unknown
    withheld = one.withheld_bytes(active=active, peak=max(peak, active), accounted=accounted)
    return max(0, accounted + withheld - BUDGET)


def test_a_step_in_flight_is_no_overrun() -> None:
    assert over(watch(), STEP, BUDGET) == 0


def test_what_the_accounts_do_not_know_is_taken_from_the_budget() -> None:
    assert over(watch(), STEP + 30 * MB, BUDGET) == 30 * MB
    assert over(watch(), STEP + 30 * MB, BUDGET - 20 * MB) == 10 * MB
    assert over(watch(), STEP + 30 * MB, BUDGET - 40 * MB) == 0


def test_accounts_beyond_the_budget_are_over() -> None:
    assert over(watch(), 0, BUDGET + MB) == MB


def test_a_step_that_takes_more_than_was_measured_corrects_the_estimate() -> None:
    one = watch()
    accounted = 100 * MB
    assert over(one, 0, accounted) == 0
    peak = WEIGHTS + accounted + 80 * MB
    assert over(one, 0, accounted, peak=peak) == 0
    assert one.step_bytes == 80 * MB
    assert over(one, 0, BUDGET, peak=peak) == 30 * MB
    # The step in flight may now be as large.
    assert over(one, 80 * MB, BUDGET, peak=peak) == 30 * MB


def test_a_lower_step_and_a_peak_that_was_reset_correct_nothing() -> None:
    one = watch()
    over(one, 0, 300 * MB)
    assert over(one, 0, 100 * MB, peak=WEIGHTS + 300 * MB) == 0
    one.withheld_bytes(active=WEIGHTS, peak=WEIGHTS, accounted=0)
    assert one.step_bytes == STEP


def test_a_pinned_budget_pays_for_no_step() -> None:
    one = watch(None)
    over(one, 0, 100 * MB)
    assert over(one, 0, 100 * MB, peak=WEIGHTS + 300 * MB) == 0
    assert one.step_bytes == 200 * MB
    assert over(one, 250 * MB, BUDGET, peak=WEIGHTS + 300 * MB) == 50 * MB


def test_each_episode_is_logged_once() -> None:
    one = watch()
    with capture_logs() as lines:
        for unknown in (0, 90, 95, 90, 10, 90):
            over(one, unknown * MB, BUDGET)
    assert [line["event"] for line in lines] == ["memory_over_accounts"] * 2
    line: Any = lines[0]
    assert (line["unknown_mb"], line["shed_mb"], line["step_mb"]) == (40, 40, 50)


@given(
    accounted=st.integers(0, 2 * BUDGET),
    unknown=st.integers(0, 2 * BUDGET),
    step=st.integers(0, 4 * STEP),
)
def test_shedding_what_is_over_makes_memory_fit(accounted: int, unknown: int, step: int) -> None:
    one = MemoryWatch(
        weights_bytes=WEIGHTS, step_bytes=step, budget_bytes=BUDGET, peak_bytes=1 << 60
    )
    active = WEIGHTS + accounted + unknown
    withheld = one.withheld_bytes(active=active, peak=active, accounted=accounted)
    shed = max(0, accounted + withheld - BUDGET)
    assert active - shed <= WEIGHTS + BUDGET + max(step, TOLERANCE_BYTES_MIN) or shed >= accounted
