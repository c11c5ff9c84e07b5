"""Rates from samples of the workers' counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from domain.engine.figures import WorkCounts
from domain.engine.rates import (
    GAP_S_MAX,
    RECENT_KEPT,
    STEP_S,
    STEPS_KEPT,
    RateHistory,
    Rates,
    Sample,
)
from domain.values import WorkerId

W1, W2 = WorkerId("w1"), WorkerId("w2")
BEGIN = 1_800_000_000


def sample(at_s: float, *, depth: int = 0, **tokens: int) -> Sample:
    counts = {WorkerId(name): WorkCounts(generated_tokens=count) for name, count in tokens.items()}
    return Sample(at_s=BEGIN + at_s, counts=counts, running=len(tokens), queue_depth=depth)


def test_rate_is_what_was_done_between_the_samples() -> None:
    history = RateHistory()
    for at_s in range(7):
        history.record(sample(at_s, w1=100 + 20 * at_s, depth=at_s))
    assert history.now().tokens_per_s == 20
    assert history.now().running == 1


def test_new_worker_counts_from_its_second_sample() -> None:
    history = RateHistory()
    history.record(sample(0, w1=5))
    history.record(sample(1, w1=10, w2=1000))
    history.record(sample(2, w1=15, w2=1010))
    assert history.now().tokens_per_s == 10  # (5 + 15) / 2


def test_means_over_prompts_weigh_each_prompt() -> None:
    history = RateHistory()
    history.record(Sample(at_s=BEGIN, counts={W1: WorkCounts()}, running=0, queue_depth=0))
    done = WorkCounts(prompt_tokens=100, cached_tokens=80, first_tokens=2, first_token_ms=300.0)
    history.record(Sample(at_s=BEGIN + 1, counts={W1: done}, running=0, queue_depth=0))
    rates = history.now()
    assert (rates.first_token_ms, rates.cached_share) == (150, 0.8)


def test_sleep_of_the_machine_is_no_rate() -> None:
    history = RateHistory()
    history.record(sample(0, w1=0))
    history.record(sample(3600, w1=7200))
    assert history.now().tokens_per_s is None


def test_clock_that_is_set_back_begins_a_new_history() -> None:
    history = RateHistory()
    history.record(sample(1000, w1=0))
    history.record(sample(999, w1=50))
    history.record(sample(0, w1=60))
    history.record(sample(1, w1=70))
    assert history.now().tokens_per_s == 10
    assert [point.at_s for point in history.points(since_s=0)] == [BEGIN]


def test_history_keeps_an_hour_however_often_it_is_sampled() -> None:
    history = RateHistory()
    for at_s in range(0, 2 * STEPS_KEPT * STEP_S, 2):
        history.record(sample(at_s, w1=at_s))
    points = history.points(since_s=0)
    assert len(points) == STEPS_KEPT
    assert {point.rates.tokens_per_s for point in points[1:]} == {1.0}
    assert len(history.points(since_s=0, step_s=60)) <= STEPS_KEPT * STEP_S // 60 + 1


def test_nothing_is_known_before_the_first_sample() -> None:
    assert RateHistory().now() == Rates()
    assert RateHistory().points(since_s=0) == ()


def test_prompts_and_generated_tokens_have_rates_of_their_own() -> None:
    history = RateHistory()
    for at_s in (0, 2):
        done = WorkCounts(generated_tokens=20 * at_s, computed_tokens=300 * at_s)
        history.record(Sample(at_s=BEGIN + at_s, counts={W1: done}, running=3, queue_depth=4))
    wanted = Rates(tokens_per_s=20, prompt_tokens_per_s=300, running=3, queue_depth=4)
    assert history.now() == wanted
    assert [point.rates for point in history.points(since_s=0)] == [wanted]


def test_jobs_are_means_over_the_samples_of_a_step() -> None:
    history = RateHistory()
    for at_s, depth in enumerate([1, 2, 6]):
        history.record(Sample(at_s=BEGIN + at_s, counts={}, running=2 * depth, queue_depth=depth))
    (point,) = history.points(since_s=0)
    assert (point.rates.running, point.rates.queue_depth) == (6, 3)
    assert (history.now().running, history.now().queue_depth) == (6, 3)


def test_rates_of_now_are_those_of_the_last_five_seconds() -> None:
    history = RateHistory()
    for at_s, tokens in enumerate([0, 1000, 2000, 2020, 2040, 2060, 2080, 2100]):
        history.record(sample(at_s, w1=tokens, depth=at_s))
    assert history.now().tokens_per_s == 20
    assert history.now().queue_depth == 5  # (3 + 4 + 5 + 6 + 7) / 5


def test_means_of_prompts_end_with_the_samples_that_are_kept() -> None:
    for quiet, mean_ms in [(RECENT_KEPT - 1, 150), (RECENT_KEPT, None)]:
        history = RateHistory()
        history.record(Sample(at_s=BEGIN, counts={W1: WorkCounts()}, running=0, queue_depth=0))
        done = WorkCounts(prompt_tokens=100, first_tokens=2, first_token_ms=300.0)
        for number in range(1, quiet + 2):
            at_s = BEGIN + number / 4
            history.record(Sample(at_s=at_s, counts={W1: done}, running=0, queue_depth=0))
        assert history.now().first_token_ms == mean_ms


def test_sample_that_is_not_newer_is_ignored() -> None:
    history = RateHistory()
    history.record(sample(100, w1=0))
    history.record(sample(101, w1=10, depth=2))
    before = history.now()
    for at_s in (101, 100.5, 101 - GAP_S_MAX + 0.5):
        history.record(sample(at_s, w1=50, depth=9))
        assert history.now() == before
    history.record(sample(102, w1=20, depth=2))
    assert history.now().tokens_per_s == 10


def test_clock_that_is_set_back_by_the_longest_gap_begins_a_new_history() -> None:
    history = RateHistory()
    history.record(sample(GAP_S_MAX, w1=0))
    history.record(sample(0, w1=60))
    assert [point.at_s for point in history.points(since_s=0)] == [BEGIN]


def test_longest_gap_still_has_a_rate() -> None:
    for gap_s, rate in [(GAP_S_MAX, 2.0), (GAP_S_MAX + 0.5, None)]:
        history = RateHistory()
        history.record(sample(0, w1=0))
        history.record(sample(gap_s, w1=60))
        assert history.now().tokens_per_s == rate


def test_points_begin_with_the_step_of_the_given_instant() -> None:
    history = RateHistory()
    for at_s in range(0, 4 * STEP_S, STEP_S):
        history.record(sample(at_s, w1=at_s))
    points = history.points(since_s=BEGIN + STEP_S)
    assert [point.at_s - BEGIN for point in points] == [STEP_S, 2 * STEP_S, 3 * STEP_S]
    assert len(history.points(since_s=BEGIN + STEP_S + 0.5)) == 2


@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 50)), min_size=2, max_size=60),
    st.sampled_from([STEP_S, 60, 300]),
)
def test_points_hold_all_that_was_done(moves: list[tuple[int, int]], step_s: int) -> None:
    history, at_s, tokens = RateHistory(), 0, 0
    history.record(sample(0, w1=0))
    for seconds, more in moves:
        at_s, tokens = at_s + seconds, tokens + more
        history.record(sample(at_s, w1=tokens))
    points = history.points(since_s=0, step_s=step_s)
    assert all(point.at_s % step_s == 0 for point in points)
    rates = [point.rates.tokens_per_s for point in points if point.rates.tokens_per_s is not None]
    fastest = max(more / seconds for seconds, more in moves)
    assert max(rates) <= fastest + 1e-9
    assert (max(rates) > 0) == (tokens > 0)
