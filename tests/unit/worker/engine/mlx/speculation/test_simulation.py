"""What drafts win and lose by the costs of a real network, on a fake clock."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.worker.engine.mlx.speculation.batch import (
    Batch,
    Costs,
    Guesser,
    batch_of,
    edit,
    prose,
)
from worker.engine.mlx.drafting.pass_times import LOSS_SHARE, OUTLIER, OUTLIER_AGAIN
from worker.engine.mlx.drafting.speculation import (
    BASELINE_PASSES,
    FIRST_DRAFT_TOKENS_MAX,
    PROBE_PASSES,
)


def noisy(seed: int, spread: float) -> Iterator[float]:
    rng = random.Random(seed)
    while True:
        yield max(0.5, rng.gauss(1, spread))


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize("spread", [0.0, 0.1])
def test_prose_loses_little_and_edits_win(rows: int, spread: float) -> None:
    speedups = []
    for make in (prose, edit):
        with_s = without_s = 0.0
        for seed in range(3):
            with_s += batch_of(make, rows, noise=noisy(seed, spread)).run().clock.now
            plain = batch_of(make, rows, noise=noisy(seed + 10, spread), speculates=False)
            without_s += plain.run().clock.now
        speedups.append(without_s / with_s)
    assert speedups[0] >= 0.98
    assert speedups[1] >= 1.3


@pytest.mark.parametrize("rows", [1, 4, 8])
@pytest.mark.parametrize(("errors", "least"), [(0.15, 1.2), (1.0, 0.97)])
def test_a_good_drafter_wins_and_a_bad_one_loses_little(
    rows: int, errors: float, least: float
) -> None:
    plain = batch_of(prose, rows, speculates=False).run()
    drafted = batch_of(prose, rows, drafter=Guesser(errors)).run()
    assert plain.clock.now / drafted.clock.now >= least


@pytest.mark.parametrize("rows", [1, 4])
def test_a_drafter_that_is_always_wrong_leaves_copies_their_drafts(rows: int) -> None:
    plain = batch_of(edit, rows, speculates=False).run()
    drafted = batch_of(edit, rows, drafter=Guesser(1.0)).run()
    assert plain.clock.now / drafted.clock.now >= 1.4


def test_a_drafter_of_the_first_answer_is_not_forgotten() -> None:
    batch = batch_of(prose, 1, drafter=Guesser(1.0)).run()
    # Refused passes are the rule, and one after 32 of them is tried again.
    assert 1 < len(batch.passes) <= batch.steps / PROBE_PASSES + 20


def test_where_no_draft_ever_pays_only_probes_are_verified() -> None:
    dear = Costs(start_s=0.1, token_s=0.2)
    batch = batch_of(edit, costs=dear).run()
    plain = batch_of(edit, costs=dear, speculates=False).run()
    # The first one costs more than it counts.
    assert batch.clock.now <= 1.02 * plain.clock.now + batch.passes[0].seconds
    assert 0 < len(batch.passes) <= batch.steps / PROBE_PASSES + 2


def test_the_first_draft_is_short_and_waits_for_a_plain_pass() -> None:
    batch = batch_of(edit).run(tokens=200)
    assert batch.passes[0].drafted <= FIRST_DRAFT_TOKENS_MAX
    assert batch.passes[0].plain_s == pytest.approx(Costs().plain(8))


def test_prompts_read_between_all_passes_do_not_keep_drafts_away() -> None:
    batch = batch_of(edit)
    batch.read_between = lambda _: True
    while not batch.passes:
        batch.step()
    assert batch.steps == BASELINE_PASSES + 1
    assert batch.passes[0].drafted == 1
    batch.run()
    assert len(batch.passes) > batch.steps / 4


@pytest.mark.parametrize("at", range(1, 40, 3))
def test_one_interrupted_pass_does_not_stop_drafts(at: int) -> None:
    factors = iter([1.0] * at + [1000.0])
    batch = batch_of(edit, noise=factors)
    for _ in range(at + 1):
        batch.step()
    before = len(batch.passes)
    for _ in range(80):
        batch.step()
    assert len(batch.passes) > before
    assert max(one.accepted for one in batch.passes[before:]) > 8


def test_a_baseline_of_a_busy_moment_is_corrected() -> None:
    """Plain passes are timed again between drafts that seem to cost nothing."""
    dear = Costs(start_s=0.15, token_s=0.03)
    batch = batch_of(edit, costs=dear, noise=[4.0] * 12)
    plain = batch_of(edit, costs=dear, noise=[4.0] * 12, speculates=False).run()
    batch.run()
    assert len(batch.passes) < batch.steps / 2
    assert batch.passes[-1].plain_s == pytest.approx(dear.plain(8), rel=0.3)
    assert batch.clock.now < 1.1 * plain.clock.now


factors = st.lists(st.floats(0.5, 5), max_size=400)


@given(
    st.sampled_from([prose, edit]),
    st.sampled_from([1, 3, 8]),
    st.floats(0, 0.2),
    st.floats(0, 0.2),
    factors,
)
def test_drafts_lose_no_more_than_their_share_and_one_pass(
    make: type, rows: int, start_s: float, token_s: float, noise: list[float]
) -> None:
    batch = batch_of(make, rows, costs=Costs(start_s, token_s), noise=iter(noise))
    lost = most = 0.0
    was_slow = False
    while batch.rows and batch.steps < 300:
        before = len(batch.passes)
        batch.step()
        for one in batch.passes[before:]:
            assert one.plain_s is not None
            assert one.expected_s is not None
            # An interruption of a pass is no fault of its drafts.
            most_s = (OUTLIER_AGAIN if was_slow else OUTLIER) * one.expected_s
            was_slow = one.seconds > OUTLIER * one.expected_s
            seconds = min(one.seconds, most_s)
            loss = seconds - one.plain_s * (1 + one.accepted / one.rows)
            lost, most = lost + loss, max(most, loss)
        assert lost <= LOSS_SHARE * batch.clock.now + most + 1e-9


def test_rows_that_come_and_go_share_what_is_known() -> None:
    first = batch_of(edit).run(tokens=600)
    prompt, answer = edit(20)
    first.speculation.drop([row.uid for row in first.rows])
    second = Batch([prompt] * 3, [answer] * 3)
    second.clock, second.times, second.speculation = first.clock, first.times, first.speculation
    second.run(tokens=60)
    assert second.passes
    assert second.steps < 20
