"""What passes take, and the balance of what drafts have lost."""

from __future__ import annotations

import pytest

from tests.unit.worker.engine.mlx.speculation.batch import Clock
from worker.engine.mlx.drafting.pass_times import (
    CREDIT_PASSES,
    LOSS_SHARE,
    OUTLIER,
    OUTLIER_AGAIN,
    PassTimes,
)


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


def drafted(
    times: PassTimes, clock: Clock, seconds: float, *, tokens: int = 4, accepted: int = 0
) -> float:
    """Record a pass with drafts; return what it changed the credit by."""
    times.record_reading()
    before = times.credit_s
    clock.now += seconds
    times.record_drafts(2, tokens, accepted)
    return times.credit_s - before


def test_a_longer_pass_costs_its_time_and_wins_that_of_accepted_tokens(
    times: PassTimes, clock: Clock
) -> None:
    assert drafted(times, clock, 1.5) == pytest.approx(LOSS_SHARE * 1.5 - 0.5)
    assert drafted(times, clock, 1.5, accepted=1) == pytest.approx(LOSS_SHARE * 1.5)
    assert drafted(times, clock, 1.5, accepted=3) == pytest.approx(LOSS_SHARE * 1.5 + 1.0)


def test_what_was_won_is_not_saved_for_ever(times: PassTimes, clock: Clock) -> None:
    for _ in range(10):
        drafted(times, clock, 1.0, accepted=4)
    assert times.credit_s == pytest.approx(CREDIT_PASSES)
    for _ in range(300):
        times.record_plain(2)
        clock.now += 1.0
    assert times.credit_s == pytest.approx(CREDIT_PASSES)


def test_without_a_plain_pass_nothing_is_known(clock: Clock) -> None:
    times = PassTimes(clock)
    assert times.plain_s(1) is None
    assert times.expected_s(1, 2) is None
    times.record_plain(1)
    assert times.plain_s(1) is None
    assert times.passes_unknown == 1


def test_the_nearest_number_of_rows_stands_in(times: PassTimes, clock: Clock) -> None:
    assert times.plain_s(2) == 1.0
    assert times.plain_s(5) == 1.0
    assert times.plain_s(1) == 0.5
    for _ in range(4):
        times.record_plain(6)
        clock.now += 2.4
    assert times.plain_s(5) == pytest.approx(2.0)
    assert times.plain_s(3) == 1.0


def test_a_draft_stands_in_where_no_plain_pass_is_known(clock: Clock) -> None:
    times = PassTimes(clock)
    for _ in range(2):
        times.interrupt()
        times.record_reading()
        clock.now += 1.5
        times.record_drafts(2, 1, 0)
    assert times.plain_s(2) == pytest.approx(1.0)
    assert times.cost is None


def test_the_cost_of_drafts_is_a_line_for_any_number_of_rows(
    times: PassTimes, clock: Clock
) -> None:
    assert times.cost is None
    assert times.expected_s(2, 4) == pytest.approx(1.0 + 4 * 0.5)
    drafted(times, clock, 1.4, tokens=2)
    assert times.cost == pytest.approx((0.0, 0.2))
    drafted(times, clock, 1.6, tokens=6)
    assert times.cost == pytest.approx((0.3, 0.05))
    assert times.expected_s(1, 4) == pytest.approx(0.5 + 0.3 + 0.2)


def test_interrupted_passes_do_not_move_what_is_known(times: PassTimes, clock: Clock) -> None:
    times.record_plain(2)
    clock.now += 50.0
    times.record_plain(2)
    assert times.plain_s(2) == 1.0
    for tokens in (2, 4, 6, 2, 4):
        drafted(times, clock, 1.3 + 0.05 * tokens, tokens=tokens)
    expected = times.expected_s(2, 4)
    assert expected == pytest.approx(1.5)
    assert drafted(times, clock, 500.0) > 1 - OUTLIER * 1.5
    assert times.expected_s(2, 4) == pytest.approx(1.5, rel=0.1)


def test_a_first_pass_that_is_interrupted_counts_a_little(times: PassTimes, clock: Clock) -> None:
    assert drafted(times, clock, 500.0, tokens=1) > 1 - OUTLIER * 1.5


def test_a_second_long_pass_counts_more(times: PassTimes, clock: Clock) -> None:
    drafted(times, clock, 9.0, tokens=2)
    expected = times.expected_s(2, 2)
    assert expected == pytest.approx(3.0)
    assert drafted(times, clock, 9.0, tokens=2) < 1 - 8.0
    assert times.expected_s(2, 2) == pytest.approx(6.0)
    assert drafted(times, clock, 900.0, tokens=2) > -OUTLIER_AGAIN * 6.0


def test_what_runs_in_between_is_left_out(times: PassTimes, clock: Clock) -> None:
    times.interrupt()
    clock.now += 100
    times.record_plain(2)
    clock.now += 1.0
    times.record_plain(2)
    assert times.plain_s(2) == 1.0


def test_a_pass_that_starts_after_a_reading_is_not_measured(clock: Clock) -> None:
    times = PassTimes(clock)
    for _ in range(9):
        times.record_plain(2)
        clock.now += 1.0
        times.record_reading()
        clock.now += 0.1
    times.record_plain(2)
    assert times.plain_s(2) is None
    drafted(times, clock, 1.5)
    times.record_plain(2)
    assert times.cost is None


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_wrong_guess_costs_time_where_the_device_waits(clock: Clock, *, overlaps: bool) -> None:
    times = PassTimes(clock, overlaps=overlaps)
    for _ in range(4):
        times.record_plain(2)
        clock.now += 1.0
    before = times.credit_s
    times.record_reading()
    clock.now += 0.3
    times.record_plain(2)
    assert times.credit_s - before == pytest.approx(LOSS_SHARE * 0.3 - 0.3 * overlaps)
