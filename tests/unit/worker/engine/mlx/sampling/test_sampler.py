from __future__ import annotations

from collections import Counter
from copy import copy
from dataclasses import replace
from typing import cast

import mlx.core as mx
import pytest

from domain.values import Sampling
from worker.engine.grammar.ports import Constraint, ConstraintLost, LookAhead, Unlimited
from worker.engine.mlx.sampling.sampler import BatchSampler, SamplerRow, draw_scores

#: Likelihoods of the six tokens of a toy vocabulary.
MASS = (0.4, 0.3, 0.15, 0.1, 0.04, 0.01)
DRAWS = 400


def drawn(*rows: Sampling, times: int = DRAWS) -> list[list[int]]:
    """What each row draws, one list per row."""
    sampler = BatchSampler(lambda size: list(range(size)))
    for uid, sampling in enumerate(rows):
        sampler.add(uid, SamplerRow(sampling, 0))
    logprobs = mx.log(mx.array([MASS] * len(rows)))
    steps = [sampler(logprobs).tolist() for _ in range(times)]
    assert sampler.faults == {}
    return [list(row) for row in zip(*steps, strict=True)]


def test_tokens_come_as_often_as_they_are_likely() -> None:
    counts = Counter(drawn(Sampling(seed=1))[0])
    for token, mass in enumerate(MASS):
        assert counts[token] / DRAWS == pytest.approx(mass, abs=0.08)


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(temperature=0), {0}),
        (Sampling(top_k=2, seed=2), {0, 1}),
        (Sampling(top_p=0.8, seed=3), {0, 1, 2}),
        (Sampling(top_p=0.05, seed=4), {0}),
        (Sampling(top_p=0, seed=4), {0}),
        (Sampling(top_p=0, temperature=2, min_p=0.01, seed=4), {0}),
        (Sampling(min_p=0.3, seed=5), {0, 1, 2}),
        (Sampling(top_p=0.8, top_k=2, min_p=0.9, seed=6), {0}),
        (Sampling(temperature=8, top_k=100, top_p=1.0, seed=7), {0, 1, 2, 3, 4, 5}),
    ],
)
def test_a_filter_keeps_exactly_the_tokens_it_names(sampling: Sampling, kept: set[int]) -> None:
    assert set(drawn(sampling)[0]) == kept


def test_a_row_without_nucleus_mass_draws_one_of_equally_likely_tokens() -> None:
    sampler = BatchSampler(lambda size: list(range(size)))
    sampler.add(0, SamplerRow(Sampling(top_p=0, seed=1), 0))
    sampler.add(1, SamplerRow(Sampling(top_p=0.5, seed=1), 0))
    logprobs = mx.log(mx.array([(0.1, 0.45, 0.45), (0.1, 0.45, 0.45)]))
    assert {sampler(logprobs)[0].item() for _ in range(50)} == {1}


@pytest.mark.parametrize("temperature", [1e-7, 1e-39, 1e-40, 5e-324])
def test_a_temperature_close_to_zero_is_greedy(temperature: float) -> None:
    cold = Sampling(temperature=temperature, seed=1)
    assert drawn(cold, Sampling(seed=2), times=5)[0] == [0] * 5
    logprobs = mx.log(mx.array((0.1, 0.2, 0.7)))
    assert mx.argmax(draw_scores(logprobs, cold, 0)).item() == 2


#: More tokens than are sorted at first.
MANY = 5000


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        (Sampling(top_k=3000, seed=1), 3000),
        (Sampling(top_p=0.9, seed=1), 4146),
        (Sampling(top_p=0.99, top_k=4000, seed=1), 4000),
        (Sampling(top_p=0.5, top_k=4000, seed=1), 1910),
    ],
    ids=["number", "mass", "number-below-mass", "mass-below-number"],
)
def test_a_wide_filter_is_exact_in_any_company(sampling: Sampling, kept: int) -> None:
    # The likeliest tokens are the last.
    logprobs = mx.log(mx.linspace(0.5, 1.5, MANY) / MANY)
    allowed = mx.isfinite(draw_scores(logprobs, sampling, 0))
    assert cast("list[bool]", allowed.tolist()) == [False] * (MANY - kept) + [True] * kept
    others = (Sampling(top_p=0.1, seed=3), Sampling(temperature=0), Sampling(top_k=7, seed=4))
    sampler = BatchSampler(lambda size: list(range(size)))
    for uid, one in enumerate((*others, sampling)):
        sampler.add(uid, SamplerRow(one, 0))
    together = [sampler(mx.stack([logprobs] * 4))[3].item() for _ in range(20)]
    alone = [mx.argmax(draw_scores(logprobs, sampling, at)).item() for at in range(20)]
    assert together == alone


def test_a_row_draws_the_same_in_any_company() -> None:
    mine = Sampling(temperature=0.9, top_k=4, seed=2**63 - 1)
    others = (Sampling(temperature=0), Sampling(top_p=0.5, seed=8), Sampling(min_p=0.1, seed=9))
    assert drawn(*others, mine, times=40)[3] == drawn(mine, times=40)[0]


def test_a_row_that_cannot_draw_is_named_and_the_others_go_on() -> None:
    sampler = BatchSampler(lambda size: list(range(size)))
    sampler.add(0, SamplerRow(Sampling(seed=1), 0))
    sampler.add(1, SamplerRow(Sampling(seed=2**70), 0))
    assert sampler(mx.log(mx.array([MASS, MASS]))).shape == (2,)
    assert set(sampler.faults) == {1}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0),
        Sampling(seed=5),
        Sampling(temperature=0.7, top_p=0.9, top_k=4, min_p=0.02, seed=2**63 - 1),
    ],
    ids=["greedy", "sampled", "cut"],
)
def test_the_token_that_is_drawn_scored_best(sampling: Sampling) -> None:
    logprobs = mx.log(mx.array(MASS))
    best = [mx.argmax(draw_scores(logprobs, sampling, index)).item() for index in range(100)]
    assert best == drawn(sampling, times=100)[0]


class _Allows(Unlimited):
    """A constraint that allows the same tokens for ever."""

    def __init__(self, *tokens: int, size: int = 1) -> None:
        self.seen: list[int] = []
        self.is_over = False
        self.is_free = False
        self._bits = bytearray(size)
        for token in tokens:
            self._bits[token // 8] |= 1 << token % 8

    @property
    def accepted_count(self) -> int:
        return len(self.seen)

    def accept(self, token: int) -> None:
        self.seen.append(token)

    def mask(self) -> bytes | None:
        return bytes(self._bits)

    def ahead(self) -> _Allows:
        other = copy(self)
        other.seen = self.seen[:]
        return other


class _Lost(_Allows):
    def mask(self) -> bytes | None:
        raise ConstraintLost("too much to follow")


def held(*rows: tuple[Sampling, Constraint | None], times: int = DRAWS) -> list[list[int]]:
    """What each row draws under its constraint, one list per row."""
    sampler = BatchSampler(lambda size: list(range(size)))
    for uid, (sampling, constraint) in enumerate(rows):
        sampler.add(uid, SamplerRow(sampling, 0, constraint))
    logprobs = mx.log(mx.array([MASS] * len(rows)))
    steps = [sampler(logprobs).tolist() for _ in range(times)]
    return [list(row) for row in zip(*steps, strict=True)]


def test_only_what_is_allowed_is_drawn_as_often_as_it_is_likely_among_the_rest() -> None:
    counts = Counter(held((Sampling(seed=1), _Allows(1, 3)))[0])
    assert set(counts) == {1, 3}
    assert counts[1] / DRAWS == pytest.approx(0.75, abs=0.08)
    assert set(held((Sampling(temperature=0), _Allows(2, 4)))[0]) == {2}
    # A nucleus is a share of what may be drawn, not of what there is.
    assert set(held((Sampling(top_p=0.7, seed=2), _Allows(1, 3)))[0]) == {1}


def test_rows_without_a_constraint_draw_as_in_a_batch_without_any() -> None:
    free = Sampling(temperature=0.9, top_p=0.8, seed=3)
    others = ((Sampling(seed=4), _Allows(5)), (Sampling(temperature=0), _Allows(3)))
    assert held((free, None), *others, times=40)[0] == drawn(free, times=40)[0]
    assert held(*others, (Sampling(temperature=0), None), times=4)[2] == [0, 0, 0, 0]


def test_a_constraint_takes_a_token_when_the_next_one_is_drawn() -> None:
    constraint = _Allows(0, 1, 2)
    (row,) = held((Sampling(seed=5), constraint), times=9)
    assert constraint.seen == row[:-1]


def test_tokens_beyond_a_mask_may_not_be_drawn() -> None:
    sampler = BatchSampler(lambda size: list(range(size)))
    sampler.add(0, SamplerRow(Sampling(seed=6), 0, _Allows(6, 7)))
    sampler.add(1, SamplerRow(Sampling(temperature=0), 0))
    logprobs = mx.log(mx.array([[0.05] * 8 + [0.1] * 6] * 2))
    for _ in range(20):
        tokens = sampler(logprobs)
        held_row, free_row = tokens[0].item(), tokens[1].item()
        assert held_row in {6, 7}
        assert free_row == 8


def test_a_constraint_that_is_lost_takes_its_row_alone() -> None:
    sampler = BatchSampler(lambda size: list(range(size)))
    sampler.add(0, SamplerRow(Sampling(seed=7), 0, _Lost()))
    sampler.add(1, SamplerRow(Sampling(seed=8), 0, _Allows(4)))
    assert sampler(mx.log(mx.array([MASS] * 2)))[1].item() == 4
    assert [type(error) for error in sampler.faults.values()] == [ConstraintLost]
    assert list(sampler.faults) == [0]


def test_masks_may_be_of_different_lengths() -> None:
    sampler = BatchSampler(lambda size: list(range(size)))
    sampler.add(0, SamplerRow(Sampling(seed=9), 0, _Allows(3)))
    sampler.add(1, SamplerRow(Sampling(seed=9), 0, _Allows(12, size=2)))
    logprobs = mx.log(mx.array([[1 / 14] * 14] * 2))
    assert [sampler(logprobs).tolist() for _ in range(5)] == [[3, 12]] * 5


def test_a_constraint_that_holds_nothing_more_is_not_asked_again() -> None:
    constraint = _Allows(0, 1, 2)
    sampler = BatchSampler(lambda size: list(range(size)))
    sampler.add(0, SamplerRow(Sampling(temperature=0), 0, constraint))
    logprobs = mx.log(mx.array([MASS]))
    first, second = sampler(logprobs).item(), sampler(logprobs).item()
    constraint.is_free = True
    for _ in range(4):
        sampler(logprobs)
    # The token that was drawn before it was free is the last that it sees.
    assert constraint.seen == [first, second]


def ahead_of(sampler: BatchSampler, guess: list[int], limit: int) -> LookAhead:
    found = sampler.masks.look_ahead(0, guess, limit)
    assert found is not None, "the sequence is restricted"
    return found


class _Spells(_Allows):
    """Allows one token after the other, then any of the last two."""

    def __init__(self, *tokens: int) -> None:
        super().__init__(4, 5)
        self._word = tokens

    def mask(self) -> bytes | None:
        at = len(self.seen)
        return bytes([1 << self._word[at]]) if at < len(self._word) else super().mask()


def test_what_a_grammar_forces_is_looked_ahead_and_rejected_draws_are_taken_back() -> None:
    sampler = BatchSampler(lambda size: [0] * size)
    constraint = _Spells(1, 3, 2, 5)
    sampler.add(0, SamplerRow(Sampling(seed=1), 0, constraint))
    first = sampler(mx.log(mx.array([MASS])))
    assert first.tolist() == [1]
    assert sampler.masks.is_masked(0)
    ahead = ahead_of(sampler, [3, 0], 8)
    # The guess is followed as far as it is allowed, and the grammar goes on.
    assert (ahead.tokens, ahead.odds) == ([3, 2, 5], [None, 1.0, 1.0])
    assert constraint.seen == [1]
    draws = sampler(mx.log(mx.array([MASS] * 3)), [1, 3, 2])
    assert draws.tolist() == [3, 2, 5]
    sampler.take_back(0, 1)
    assert ahead_of(sampler, [], 8).tokens == [5]
    assert constraint.seen == [1, 3, 2]
    assert sampler(mx.log(mx.array([MASS])))[0].item() == 5


def test_what_was_drawn_under_a_mask_is_expected_under_it_again() -> None:
    sampler = BatchSampler(lambda size: [0] * size)
    sampler.add(0, SamplerRow(Sampling(temperature=0), 0, _Spells(1)))
    assert sampler(mx.log(mx.array([MASS])))[0].item() == 1
    assert ahead_of(sampler, [], 8).tokens == []
    assert sampler(mx.log(mx.array([MASS])))[0].item() == 4
    ahead = ahead_of(sampler, [], 2)
    assert ahead.tokens == [4, 4]
    assert len(ahead.masks) == 3


def test_a_grammar_that_is_lost_ahead_costs_only_the_draft() -> None:
    class LostLater(_Spells):
        def mask(self) -> bytes | None:
            if len(self.seen) == 2:
                raise ConstraintLost("too much to follow")
            return super().mask()

    sampler = BatchSampler(lambda size: [0] * size)
    sampler.add(0, SamplerRow(Sampling(seed=1), 0, LostLater(1, 3, 2)))
    sampler(mx.log(mx.array([MASS])))
    assert ahead_of(sampler, [], 8).tokens == []
    assert sampler(mx.log(mx.array([MASS])))[0].item() == 3
    assert sampler.faults == {}
    assert ahead_of(sampler, [], 8).tokens == []
    sampler(mx.log(mx.array([MASS])))
    assert set(sampler.faults) == {0}


def test_xtc_counts_shares_of_what_a_constraint_allows_also_beside_rows_with_filters() -> None:
    xtc = Sampling(xtc_probability=1.0, xtc_threshold=0.35)
    sampler = BatchSampler(lambda size: list(range(size)))
    # Of all tokens the likeliest alone reaches the threshold; of the allowed ones all do.
    sampler.add(0, SamplerRow(replace(xtc, seed=1), 0, constraint=_Allows(1, 2)))
    sampler.add(1, SamplerRow(replace(xtc, seed=2, top_k=2), 0))
    sampler.add(2, SamplerRow(replace(xtc, seed=3), 0))
    logprobs = mx.log(mx.array([(0.4, 0.3, 0.25, 0.05, 0.0, 0.0)] * 3))
    draws = [cast("list[int]", sampler(logprobs).tolist()) for _ in range(DRAWS)]
    assert sampler.faults == {}
    assert [set(row) for row in zip(*draws, strict=True)] == [{2}, {1}, {0, 1, 2, 3}]
