"""What a pass with drafts costs, in tokens."""

from __future__ import annotations

import pytest

from worker.engine.mlx.speculation import COST_MIN, ROW_COST_MAX, PassTimes


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def times(clock: Clock) -> PassTimes:
    """Two rows, whose plain passes take a second."""
    times = PassTimes(clock)
    for _ in range(4):
        times.record_plain(2)
        clock.now += 1.0
    return times


def drafted(times: PassTimes, clock: Clock, seconds: float, *, drafting: int = 1) -> float:
    times.record_reading()
    clock.now += seconds
    return times.record_drafts(2, drafting, 4)


def test_a_longer_pass_costs_the_tokens_that_plain_ones_draw_meanwhile(
    times: PassTimes, clock: Clock
) -> None:
    assert drafted(times, clock, 1.5) == pytest.approx(0.5 * 2)
    assert drafted(times, clock, 1.5, drafting=2) == pytest.approx(0.5)


def test_an_unknown_or_short_time_costs_the_least(times: PassTimes, clock: Clock) -> None:
    assert drafted(times, clock, 0.5) == COST_MIN
    assert PassTimes(clock).record_drafts(1, 1, 5) == COST_MIN
    assert times.record_drafts(3, 1, 5) == COST_MIN


def test_the_cost_of_a_position_is_learned_by_rows(times: PassTimes, clock: Clock) -> None:
    assert times.position_cost(2) == 0
    for _ in range(30):
        drafted(times, clock, 3.0)
    assert times.position_cost(2) == pytest.approx(2.0 * 2 / 4)
    assert times.position_cost(3) == 0


def test_an_interrupted_pass_does_not_count_whole(times: PassTimes, clock: Clock) -> None:
    drafted(times, clock, 1.5)
    assert drafted(times, clock, 500.0) == ROW_COST_MAX * 4 * 2
    assert times.position_cost(2) <= 1


def test_what_runs_in_between_is_left_out(times: PassTimes, clock: Clock) -> None:
    times.interrupt()
    clock.now += 100
    times.record_plain(2)
    clock.now += 1.0
    times.record_plain(2)
    assert drafted(times, clock, 1.5) == pytest.approx(1.0)


def test_the_pass_after_drafts_is_read_at_once_and_not_counted(
    times: PassTimes, clock: Clock
) -> None:
    drafted(times, clock, 1.5)
    times.record_plain(2)
    clock.now += 1.0
    times.record_plain(2)
    assert drafted(times, clock, 1.5) == pytest.approx(1.0)


def test_an_outlier_moves_the_average_little(times: PassTimes, clock: Clock) -> None:
    times.record_plain(2)
    clock.now += 50.0
    times.record_plain(2)
    assert drafted(times, clock, 1.5) > 0.4
