"""Log-probabilities of the rows of a batch, compared with numpy."""

from __future__ import annotations

import math
from typing import cast

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.chat.logprobs import UNLIKELY
from domain.values import Sampling
from worker.engine.mlx.sampling.logprobs import LogprobRows, logprobs_of
from worker.engine.mlx.sampling.sampler import BatchSampler, SamplerRow
from worker.engine.ports import TokenLikelihood

VOCABULARY = 33


def rows_of(count: int, seed: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Log-probabilities as mlx-lm makes them."""
    logits = mx.array(np.random.default_rng(seed).normal(0, 4, (count, VOCABULARY))).astype(dtype)
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def exact_of(row: mx.array) -> list[float]:
    """The same in double precision, as a whole."""
    exact = np.array(row.astype(mx.float32)).astype(np.float64)
    return list(map(float, exact - np.log(np.exp(exact).sum())))


@settings(max_examples=25)
@given(
    tops=st.lists(st.none() | st.integers(0, 20), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
    dtype=st.sampled_from([mx.float32, mx.bfloat16]),
)
def test_each_row_has_the_values_that_it_requests(
    tops: list[int | None], seed: int, dtype: mx.Dtype
) -> None:
    uids = list(range(10, 10 + len(tops)))
    sampler = BatchSampler(lambda _: uids)
    for uid, top in zip(uids, tops, strict=True):
        sampler.add(uid, SamplerRow(Sampling(temperature=1.5, seed=uid), 0, logprobs=top))
    steps = [rows_of(len(tops), seed + step, dtype) for step in range(3)]
    drawn = [cast("list[int]", sampler(rows).tolist()) for rows in steps]
    for step, (rows, tokens) in enumerate(zip(steps, drawn, strict=True)):
        for row, (uid, top) in enumerate(zip(uids, tops, strict=True)):
            likely = sampler.logprob_rows.next(uid)
            if top is None:
                assert likely is None
                continue
            assert likely is not None, step
            exact = exact_of(rows[row])
            assert likely.logprob == pytest.approx(exact[tokens[row]], abs=2e-5)
            values = [value for _, value in likely.top]
            assert values == pytest.approx(sorted(exact, reverse=True)[:top], abs=2e-5)
            # Rounded values may be equal; the last of equal ones is not specified.
            assert values == pytest.approx([exact[one] for one, _ in likely.top], abs=2e-5)
            assert len({one for one, _ in likely.top}) == top
            assert list(likely.top) == sorted(likely.top, key=lambda one: (-one[1], one[0]))


def test_draw_is_the_same_with_and_without_logprobs() -> None:
    drawn = []
    for logprobs in (None, 0, 7):
        sampler = BatchSampler(lambda _: [1, 2])
        sampler.add(1, SamplerRow(Sampling(temperature=1.0, seed=3), 0, logprobs=logprobs))
        sampler.add(2, SamplerRow(Sampling(temperature=0.0), 0))
        drawn.append([sampler(rows_of(2, seed)).tolist() for seed in range(5)])
    assert drawn[0] == drawn[1] == drawn[2]


def test_first_value_can_be_read_again_until_it_is_dropped() -> None:
    sampler = BatchSampler(lambda _: [1])
    sampler.add(1, SamplerRow(Sampling(temperature=0), 0, logprobs=1))
    sampler(rows_of(1, 1))
    first = sampler.logprob_rows.first(1)
    assert first is not None
    assert sampler.logprob_rows.next(1) == first
    assert sampler.logprob_rows.next(1) is None
    sampler(rows_of(1, 1))
    sampler.drop(1)
    assert sampler.logprob_rows.next(1) is None


def test_impossible_token_has_a_value_that_json_can_encode() -> None:
    row = mx.array([[0.0, -math.inf, -math.inf]])
    likelihoods = LogprobRows()
    likelihoods.add(5, 20)
    likelihoods.note([5], row, mx.array([1]))
    assert likelihoods.next(5) == TokenLikelihood(
        UNLIKELY, ((0, 0.0), (1, UNLIKELY), (2, UNLIKELY))
    )


def test_rows_without_a_request_compute_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("rows without a request were computed")

    sampler = BatchSampler(lambda _: [1])
    sampler.add(1, SamplerRow(Sampling(temperature=0), 0))
    for name in ("argpartition", "async_eval", "take_along_axis"):
        monkeypatch.setattr(mx, name, refuse)
    sampler(mx.array([[0.5, 0.5]]))


def test_single_values_are_normalised_whatever_the_network_computes_in() -> None:
    row = rows_of(1, 4, mx.bfloat16)[0]
    exact = exact_of(row)
    assert logprobs_of(row, [0, 5, 32]) == pytest.approx([exact[n] for n in (0, 5, 32)], abs=2e-5)
