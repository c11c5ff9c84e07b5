"""Biases, penalties and XTC against their definitions, and each row as it is alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import cast

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from domain.values import Sampling
from worker.engine.mlx.sampling.sampler import BatchSampler, SamplerRow, draw_scores

VOCABULARY = 12

tokens = st.integers(0, VOCABULARY - 1)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.7, 1.0]),
    top_p=st.sampled_from([1.0, 0.8]),
    top_k=st.sampled_from([0, 5]),
    min_p=st.sampled_from([0.0, 0.05]),
    presence_penalty=st.sampled_from([0.0, 1.5, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.5]),
    repetition_context_size=st.integers(0, 9),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100.0, 1.0, 5.0]), max_size=3).map(
        lambda bias: tuple(sorted(bias.items()))
    ),
    xtc_probability=st.sampled_from([0.0, 0.5, 1.0]),
    xtc_threshold=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 2**63 - 1),
)


def logits_of(history: Sequence[int]) -> list[float]:
    """Return logits that depend on the whole history, as those of a network do."""
    mixed = sum((at + 1) * token for at, token in enumerate(history))
    return [4 * math.sin(1.7 * token + mixed) for token in range(VOCABULARY)]


def defined(sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
    """Return the logits after biases and penalties, by their definitions."""
    history, bias = [*prompt, *answer], dict(sampling.logit_bias)
    window = history[-sampling.repetition_context_size :]
    counts = Counter(answer)
    found = []
    for token, logit in enumerate(logits_of(history)):
        value = logit + bias.get(token, 0)
        if token in window:
            rule = sampling.repetition_penalty
            value = value * rule if value < 0 else value / rule
        value -= counts[token] * sampling.frequency_penalty
        found.append(value - (token in counts) * sampling.presence_penalty)
    return found


class Batch:
    """Sequences that draw together, each from the logits of its own tokens."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self.sampler = BatchSampler(lambda _: self._rows)
        self.histories: dict[int, list[int]] = {}
        self._next: mx.array | list[int] | None = None

    def add(self, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int] = ()) -> int:
        uid = len(self.histories)
        self.histories[uid] = [*prompt, *answer]
        row = SamplerRow(sampling, len(answer), tokens=(*prompt, *answer))
        self.sampler.add(uid, row)
        return uid

    def step(self, *, on_device: bool) -> None:
        """Draw a token of each sequence."""
        self._rows = list(self.histories)
        given = [history[-1] for history in self.histories.values()]
        read = mx.array(given) if on_device else given
        logits = mx.array([logits_of(history) for history in self.histories.values()])
        drawn = cast("list[int]", self.sampler(logits, read).tolist())
        for history, token in zip(self.histories.values(), drawn, strict=True):
            history.append(token)

    def verify(self, drafts: Sequence[Sequence[int]]) -> None:
        """Draw after the last token of each sequence and after each drafted one."""
        pieces = [
            [one[-1], *draft] for one, draft in zip(self.histories.values(), drafts, strict=True)
        ]
        self._rows = [uid for uid, piece in enumerate(pieces) for _ in piece]
        logits = [
            logits_of([*self.histories[uid], *piece[1 : at + 1]])
            for uid, piece in enumerate(pieces)
            for at in range(len(piece))
        ]
        read = [token for piece in pieces for token in piece]
        drawn = iter(cast("list[int]", self.sampler(mx.array(logits), read).tolist()))
        for uid, piece in enumerate(pieces):
            draws = [next(drawn) for _ in piece]
            accepted = 0
            while accepted < len(piece) - 1 and draws[accepted] == piece[accepted + 1]:
                accepted += 1
            self.sampler.take_back(uid, len(piece) - 1 - accepted)
            self.histories[uid] += draws[: accepted + 1]


def alone(sampling: Sampling, prompt: Sequence[int], count: int) -> list[int]:
    batch = Batch()
    batch.add(sampling, prompt)
    for _ in range(count):
        batch.step(on_device=False)
    return batch.histories[0][len(prompt) :]


prompts = st.lists(tokens, min_size=1, max_size=8)
requests = st.lists(st.tuples(samplings, prompts), min_size=1, max_size=3)


@settings(deadline=None, max_examples=60)
@given(samplings, prompts, st.lists(tokens, max_size=12))
def test_logits_change_as_defined(sampling: Sampling, prompt: list[int], answer: list[int]) -> None:
    batch = Batch()
    batch.add(sampling, prompt)
    for token in answer:
        batch.step(on_device=True)
        batch.histories[0][-1] = token
    batch.step(on_device=True)
    assert batch.sampler.drawn_from is not None
    expected = defined(sampling, prompt, answer)
    assert batch.sampler.drawn_from[0].tolist() == pytest.approx(expected, abs=1e-4)


@settings(deadline=None, max_examples=40)
@given(requests, st.data())
def test_a_row_draws_the_same_alone_together_resumed_and_with_drafts(
    rows: list[tuple[Sampling, list[int]]], data: st.DataObject
) -> None:
    count = 6
    answers = [alone(sampling, prompt, count) for sampling, prompt in rows]
    batch = Batch()
    for (sampling, prompt), answer in zip(rows, answers, strict=True):
        batch.add(sampling, prompt, answer[: data.draw(st.integers(0, count), label="resumed at")])
    ends = [len(prompt) + count for _, prompt in rows]
    while any(len(batch.histories[uid]) < end for uid, end in enumerate(ends)):
        if data.draw(st.booleans(), label="drafts"):
            batch.verify(
                [
                    _draft(data, answer[len(batch.histories[uid]) - len(prompt) :])
                    for uid, ((_, prompt), answer) in enumerate(zip(rows, answers, strict=True))
                ]
            )
        else:
            batch.step(on_device=data.draw(st.booleans(), label="on the device"))
    assert batch.sampler.faults == {}
    for uid, ((_, prompt), answer) in enumerate(zip(rows, answers, strict=True)):
        assert batch.histories[uid][len(prompt) :][:count] == answer


def _draft(data: st.DataObject, rest: list[int]) -> list[int]:
    """Return a draft whose first tokens are right."""
    right = data.draw(st.integers(0, len(rest)), label="right")
    return rest[:right] + data.draw(st.lists(tokens, max_size=3), label="wrong")


def test_a_sampler_scores_its_penalised_draw_best() -> None:
    sampling = Sampling(repetition_penalty=1.5, xtc_probability=0.5, xtc_threshold=0.1, seed=3)
    batch = Batch()
    batch.add(sampling, [1, 2, 3])
    for index in range(30):
        batch.step(on_device=False)
        assert batch.sampler.drawn_from is not None
        scores = draw_scores(batch.sampler.drawn_from[0], sampling, index)
        assert mx.argmax(scores).item() == batch.histories[0][-1]


@pytest.mark.parametrize(
    ("threshold", "kept"),
    [(0.35, {0, 1, 2, 3}), (0.25, {1, 2, 3}), (0.12, {2, 3}), (0.0, {3})],
)
def test_xtc_leaves_the_least_likely_of_the_top_choices(threshold: float, kept: set[int]) -> None:
    logprobs = mx.log(mx.array((0.4, 0.3, 0.2, 0.1)))
    sampling = Sampling(xtc_probability=1.0, xtc_threshold=threshold, seed=1)
    scores = [draw_scores(logprobs, sampling, index) for index in range(60)]
    assert {cast("int", mx.argmax(one).item()) for one in scores} == kept


def test_xtc_happens_as_often_as_requested_and_counts_what_the_filters_keep() -> None:
    # Of the two tokens that top_k keeps, both reach the threshold; of all five only one does.
    logprobs = mx.log(mx.array((0.4, 0.29, 0.11, 0.1, 0.1)))
    sampling = Sampling(xtc_probability=0.3, xtc_threshold=0.4, top_k=2, seed=7)
    greedy = Sampling(temperature=0, xtc_probability=0.3, xtc_threshold=0.4, top_k=2, seed=7)
    removed = [
        math.isinf(cast("float", draw_scores(logprobs, sampling, at)[0].item()))
        for at in range(500)
    ]
    assert sum(removed) / 500 == pytest.approx(0.3, abs=0.08)
    best = [mx.argmax(draw_scores(logprobs, greedy, at)).item() for at in range(500)]
    assert best == [int(one) for one in removed]


def test_a_bias_of_a_token_that_the_model_lacks_takes_its_row_alone() -> None:
    batch = Batch()
    batch.add(Sampling(logit_bias=((VOCABULARY, 1.0),)), [1])
    batch.add(Sampling(temperature=0, logit_bias=((4, 100.0),)), [1])
    batch.step(on_device=True)
    assert batch.histories[1][-1] == 4
    error = batch.sampler.faults.pop(0)
    assert isinstance(error, InvalidRequest)
    assert error.field == "logit_bias"


def test_rows_without_penalties_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = Batch()
    batch.add(Sampling(temperature=0), [1])
    monkeypatch.setattr(mx, "put_along_axis", None)
    batch.step(on_device=True)


def test_xtc_of_a_greedy_row_counts_what_top_p_keeps() -> None:
    # top_p keeps three tokens, and XTC the last of those that have a tenth of their mass.
    logits = mx.log(mx.array((0.5, 0.3, 0.15, 0.05))) + 7
    row = Sampling(temperature=0, top_p=0.9, xtc_probability=1.0, xtc_threshold=0.1)
    assert mx.argmax(draw_scores(logits, row, 0)).item() == 2
