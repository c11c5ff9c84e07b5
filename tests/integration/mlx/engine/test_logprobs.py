"""What is told of likelihoods is what a plain pass of mlx-lm over the same tokens gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from domain.values import Sampling
from tests.support.models.families import ALL_ARCHITECTURES, every_architecture
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import Bench, OnlyEven, Run
from tests.support.models.tiny_architectures import LLAMA, Architecture
from worker.engine.grammar.ports import Constraint
from worker.engine.mlx.kv.window_cache import make_row_caches

#: Largest difference between a batch that is read in pieces and one plain pass, in fp32, with the
#: last digit that is told.
BOUND = 1e-4
TOP = 4
#: Keys and values in 8 bits differ from those of a plain pass by their rounding.
in_full_precision = pytest.mark.parametrize(
    "architecture",
    [one for one in ALL_ARCHITECTURES if not getattr(one, "kv_bits", 0)],
    ids=lambda architecture: architecture.name,
)
WARM = Sampling(temperature=1.3, top_p=0.9, top_k=30, min_p=0.01, seed=5)


def plain(bench: Bench, prompt: Sequence[int], tokens: Sequence[int]) -> np.ndarray:
    """Log-probabilities at the place of each token, by one pass over all."""
    # Without caches, layers that share the keys of others would compute keys of their own.
    caches = make_row_caches(bench.network)
    logits = bench.network(mx.array([[*prompt, *tokens]]), cache=caches)[0, len(prompt) - 1 : -1]
    logits = logits.astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


def check(bench: Bench, run: Run, top: int = TOP) -> None:
    assert len(run.likelihoods) == len(run.tokens) > 0
    rows = plain(bench, run.prompt, run.tokens)
    for row, token, likely in zip(rows, run.tokens, run.likelihoods, strict=True):
        assert abs(likely.logprob - row[token]) <= BOUND
        assert len(likely.top) == top
        told = [value for _, value in likely.top]
        assert told == sorted(told, reverse=True)
        assert np.abs(np.array(told) - np.sort(row)[::-1][:top]).max(initial=0) <= BOUND
        assert all(abs(value - row[one]) <= BOUND for one, value in likely.top)


def asked(bench: Bench, prompt: list[int], tokens: int, top: int | None, **rules: object) -> Run:
    admission = bench.admission(prompt, tokens, WARM)
    return bench.join_as(replace(admission, logprobs=top, **rules))  # type: ignore[arg-type]


@in_full_precision
def test_values_are_those_of_a_plain_pass_beside_any_other_rows(
    architecture: Architecture,
) -> None:
    bench = Bench(architecture)
    runs = [
        asked(bench, random_tokens(37, 1), 12, TOP),
        asked(bench, random_tokens(9, 2), 20, None),
    ]
    bench.step()
    bench.step()
    runs += [asked(bench, random_tokens(50, 3), 9, 0), asked(bench, random_tokens(21, 4), 14, 20)]
    bench.finish()
    check(bench, runs[0])
    assert runs[1].likelihoods == []
    check(bench, runs[2], 0)
    check(bench, runs[3], 20)
    bench.close()


@every_architecture
def test_values_are_the_same_for_an_attempt_after_any_token(
    architecture: Architecture,
) -> None:
    bench = Bench(architecture)
    prompt = random_tokens(23, 7)
    whole = asked(bench, prompt, 8, TOP)
    bench.finish()
    for cut in range(1, 8):
        again = asked(bench, [*prompt, *whole.tokens[:cut]], 8 - cut, TOP, first_index=cut)
        bench.finish(again)
        assert again.tokens == whole.tokens[cut:]
        for one, other in zip(again.likelihoods, whole.likelihoods[cut:], strict=True):
            assert one.logprob == pytest.approx(other.logprob, abs=BOUND)
            assert [v for _, v in one.top] == pytest.approx([v for _, v in other.top], abs=BOUND)
    bench.close()


def test_a_form_that_the_answer_is_held_to_changes_no_value() -> None:
    bench = Bench(LLAMA)
    constraint: Constraint = OnlyEven()
    run = asked(bench, random_tokens(12, 3), 10, TOP, constraint=constraint)
    bench.finish()
    assert all(token % 2 == 0 for token in run.tokens)
    # Some of what would have been likelier is no longer possible, and told all the same.
    assert any(one % 2 for likely in run.likelihoods for one, _ in likely.top)
    check(bench, run)
    bench.close()


def test_values_do_not_wait_for_rows_that_leave() -> None:
    bench = Bench(LLAMA)
    leaving, staying = asked(bench, [1, 2, 3], 30, 2), asked(bench, [4, 5, 6, 7], 12, TOP)
    while len(leaving.tokens) < 3:
        bench.step()
    bench.leave(leaving)
    bench.finish()
    check(bench, staying)
    again = asked(bench, [9, 8], 5, TOP)
    bench.finish()
    check(bench, again)
    bench.close()


@in_full_precision
def test_values_of_a_prompt_are_those_of_a_plain_pass_beside_any_other_rows(
    architecture: Architecture,
) -> None:
    bench = Bench(architecture)
    prompts = [random_tokens(70, 5), random_tokens(70, 5), random_tokens(3, 6), [7]]
    bench.run_alone(prompts[0], 4)
    beside = asked(bench, random_tokens(37, 1), 30, TOP)
    bench.step()
    scored = {"is_scored": True, "is_cold": True, "is_alone": True}
    runs = [asked(bench, prompt, 3, TOP, **scored) for prompt in prompts]
    # The cache has the prompt, and still all of it is read.
    assert [run.cached for run in runs] == [0, 0, 0, 0]
    bench.finish()
    for run in runs:
        check(bench, run)
        assert len(run.prompt_likelihoods or ()) == len(run.prompt) - 1
        rows = plain(bench, run.prompt[:1], run.prompt[1:]) if run.prompt[1:] else ()
        for row, token, likely in zip(
            rows, run.prompt[1:], run.prompt_likelihoods or (), strict=True
        ):
            assert abs(likely.logprob - row[token]) <= BOUND
            assert [value for _, value in likely.top] == pytest.approx(
                np.sort(row)[::-1][:TOP], abs=BOUND
            )
    check(bench, beside)
    assert beside.prompt_likelihoods is None
    bench.close()
