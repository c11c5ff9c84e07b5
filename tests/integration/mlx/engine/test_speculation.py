"""With drafts, the tokens are those without; the drafts come from an oracle that errs at times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from domain.values import Sampling
from tests.support.day_and_night import in_turn
from tests.support.models.disk_bench import DiskBench
from tests.support.models.families import every_architecture
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.networks_with_states import (
    DRAFTING_STATES,
    KIMI_LINEAR,
    LFM2,
    MAMBA,
    QWEN3_5,
)
from tests.support.models.runner_probe import BLOCK, Bench, OnlyEven, Run, make_drafts_free
from tests.support.models.tiny_architectures import (
    GEMMA3,
    GPT_OSS,
    LLAMA,
    VOCABULARY,
    Architecture,
)
from worker.engine.grammar.ports import Constraint
from worker.engine.mlx.drafting import speculation as module
from worker.engine.mlx.kv.window_cache import is_state, leaves, make_row_caches
from worker.engine.ports import Finish

GREEDY = Sampling(temperature=0)
SAMPLED = Sampling(temperature=0.9, top_p=0.95, top_k=40, seed=5)
PENALISED = Sampling(
    frequency_penalty=0.2, repetition_penalty=1.2, repetition_context_size=20, seed=8
)
#: Prompts that end before, at and after a border of blocks, and one beyond the windows.
LENGTHS = (5, 2 * BLOCK, 3 * BLOCK + 7, 100)
TOKENS = 40
#: Rounding of float32, with the last digit that is told.
BOUND = 1e-4

#: One of each kind of cache; the others are compared in a shorter test.
KINDS = (LLAMA, GEMMA3, GPT_OSS, QWEN3_5, LFM2, KIMI_LINEAR)
#: A second one with windows, and further ones with states.
LATE = (GPT_OSS, LFM2, KIMI_LINEAR)
drafting = pytest.mark.parametrize(
    "architecture",
    [LLAMA, GEMMA3, QWEN3_5, *(pytest.param(one, marks=pytest.mark.nightly) for one in LATE)],
    ids=lambda a: a.name,
)


class Oracle:
    """Knows the answers of an earlier run.

    Args:
        seed: Of its errors.
        errors: Share of its tokens that are wrong.
    """

    def __init__(self, seed: int = 1, errors: float = 0.2) -> None:
        self.answers: dict[tuple[int, ...], list[int]] = {}
        self._rng = random.Random(seed)
        self._errors = errors

    def learn(self, *runs: Run) -> None:
        for run in runs:
            self.answers[tuple(run.prompt)] = [*run.tokens, 0, 0]

    def guess(self, tokens: Sequence[int], count: int) -> list[int]:
        for prompt, answer in self.answers.items():
            if tuple(tokens[: len(prompt)]) == prompt:
                start = len(tokens) - len(prompt)
                return [self._token(token) for token in answer[start : start + count]]
        return []

    def _token(self, token: int) -> int:
        return (token + 1) % VOCABULARY if self._rng.random() < self._errors else token


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    oracle = Oracle()
    make_drafts_free(monkeypatch)

    class Lookup:
        agreement = 1.0

        def __init__(self, tokens: Sequence[int]) -> None:
            self._tokens = tokens

        def propose(self, count: int) -> list[int]:
            # Some passes are plain.
            return oracle.guess(self._tokens, count) if len(self._tokens) % 9 else []

    monkeypatch.setattr(module, "PromptLookup", Lookup)
    return oracle


def without_drafts(architecture: Architecture, ends: frozenset[int] = frozenset()) -> Bench:
    bench = Bench(architecture, ends=ends)
    bench.runner.speculates = False
    bench.runner.reset()
    return bench


def asked(bench: Bench, prompt: list[int], tokens: int, sampling: Sampling, **rules: object) -> Run:
    admission = bench.admission(prompt, tokens, sampling)
    return bench.join_as(replace(admission, **rules))  # type: ignore[arg-type]


def same_values(run: Run, other: Run) -> bool:
    pairs = zip(run.likelihoods, other.likelihoods, strict=True)
    return all(abs(one.logprob - two.logprob) < BOUND for one, two in pairs)


@in_turn(
    "architecture, sampling",
    KINDS,
    {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED},
)
def test_tokens_and_their_logprobs_are_those_without_drafts(
    oracle: Oracle, architecture: Architecture, sampling: Sampling
) -> None:
    cold, bench = without_drafts(architecture), Bench(architecture)
    prompts = [random_tokens(length, length) for length in LENGTHS]
    expected = [asked(cold, prompt, TOKENS, sampling, logprobs=3) for prompt in prompts]
    cold.finish()
    oracle.learn(*expected)
    alone = asked(bench, prompts[0], TOKENS, sampling, logprobs=3)
    bench.finish()
    assert alone.tokens == expected[0].tokens
    together = [asked(bench, prompt, TOKENS, sampling, logprobs=3) for prompt in prompts]
    while not all(run.ended for run in together):
        bench.step()
        bench.check()
        for run in (run for run in together if not run.ended):
            found = bench.runner.sequences.find(run.uid)
            if found is not None:
                caches = [leaf for leaf in leaves(found[0]) if not is_state(leaf)]
                assert {leaf.offset for leaf in caches} <= {len(found[1])}
    assert [run.tokens for run in together] == [run.tokens for run in expected]
    assert all(map(same_values, together, expected))
    counts = bench.runner.drafts
    assert TOKENS < counts.accepted_tokens < counts.drafted_tokens < 8 * counts.drafts
    assert cold.runner.drafts.drafts == 0


@drafting
def test_an_end_inside_a_draft_ends_the_sequence_and_its_blocks(
    oracle: Oracle, architecture: Architecture
) -> None:
    prompts = [random_tokens(length, length) for length in LENGTHS]
    cold = without_drafts(architecture)
    runs = [cold.join(prompt, 20, SAMPLED) for prompt in prompts]
    cold.finish()
    oracle.learn(*runs)
    ends = frozenset(run.tokens[at] for at, run in enumerate(runs, 9))
    for limit in (17, TOKENS):
        cold, bench = without_drafts(architecture, ends), Bench(architecture, ends=ends)
        expected = [cold.join(prompt, limit, SAMPLED) for prompt in prompts]
        cold.finish()
        drafted = [bench.join(prompt, limit, SAMPLED) for prompt in prompts]
        bench.drain()
        for run, other in zip(drafted, expected, strict=True):
            assert (run.tokens, run.finish) == (other.tokens, other.finish)
            following = [*run.prompt, *run.tokens, 1, 2]
            known = cold.reuse.pool.find(following).tokens
            assert bench.reuse.pool.find(following).tokens == known > len(run.prompt) - 1


@drafting
def test_a_resumed_sequence_goes_on_with_the_same_tokens(
    oracle: Oracle, architecture: Architecture
) -> None:
    bench, prompt = Bench(architecture), random_tokens(37, 3)
    whole = without_drafts(architecture).run_alone(prompt, TOKENS, SAMPLED)
    for cut in (1, 10, 33):
        given = [*prompt, *whole.tokens[:cut]]
        oracle.answers[tuple(given)] = whole.tokens[cut:]
        run = bench.join(given, TOKENS - cut, SAMPLED, first_index=cut)
        bench.finish(run)
        assert run.tokens == whole.tokens[cut:]
    assert bench.runner.drafts.accepted_tokens


def test_a_preempted_sequence_goes_on_with_the_same_tokens(oracle: Oracle) -> None:
    size = Bench(LLAMA).reuse._spec.stored_bytes(BLOCK)
    cold, bench = without_drafts(LLAMA), Bench(LLAMA, budget_bytes=9 * size)
    prompts = [random_tokens(20 + 15 * (n % 4), 70 + n) for n in range(6)]
    expected = [cold.join(prompt, 30, SAMPLED) for prompt in prompts]
    cold.finish()
    oracle.learn(*expected)
    runs = [bench.wait(prompt, 30, SAMPLED) for prompt in prompts]
    bench.drain()
    assert any(run.paused for run in runs)
    assert [run.tokens for run in runs] == [run.tokens for run in expected]


class _OnlyEven(OnlyEven):
    """One that can look ahead."""

    looks_ahead = True

    def ahead(self) -> Constraint | None:
        return copy(self)


class _Blind(_OnlyEven):
    """One that cannot look ahead."""

    looks_ahead = False


@pytest.mark.parametrize("sampling", [SAMPLED, PENALISED], ids=["sampled", "penalised"])
def test_a_restricted_sequence_draws_the_same_with_drafts_alone_and_beside_a_free_one(
    oracle: Oracle, sampling: Sampling
) -> None:
    cold, bench = without_drafts(LLAMA), Bench(LLAMA)
    first, second = random_tokens(12, 3), random_tokens(30, 4)
    restricted = asked(cold, first, TOKENS, sampling, constraint=_OnlyEven())
    free = cold.join(second, TOKENS, SAMPLED)
    cold.finish()
    oracle.learn(restricted, free)
    alone = asked(bench, first, TOKENS, sampling, constraint=_OnlyEven())
    bench.finish()
    assert alone.tokens == restricted.tokens
    # The oracle errs, and a wrong token that is not allowed is not verified.
    assert bench.runner.drafts.accepted_tokens > TOKENS // 2
    beside = asked(bench, first, TOKENS, sampling, constraint=_OnlyEven())
    other = bench.join(second, TOKENS, SAMPLED)
    bench.finish()
    assert (beside.tokens, other.tokens) == (restricted.tokens, free.tokens)


def test_a_constraint_that_cannot_look_ahead_gets_no_drafts(oracle: Oracle) -> None:
    cold, bench = without_drafts(LLAMA), Bench(LLAMA)
    prompt = random_tokens(12, 3)
    expected = asked(cold, prompt, TOKENS, SAMPLED, constraint=_Blind())
    cold.finish()
    oracle.learn(expected)
    run = asked(bench, prompt, TOKENS, SAMPLED, constraint=_Blind())
    bench.finish()
    assert run.tokens == expected.tokens
    assert bench.runner.drafts.drafts == 0


@every_architecture
def test_every_architecture_drafts_unless_it_refuses(
    oracle: Oracle, architecture: Architecture
) -> None:
    bench, prompt = Bench(architecture), random_tokens(20, 8)
    expected = without_drafts(architecture).run_alone(prompt, 12)
    oracle.learn(expected)
    assert bench.run_alone(prompt, 12).tokens == expected.tokens
    refuses = architecture.name == "longcat_flash_ngram"
    assert bool(bench.runner.drafts.drafts) is not refuses


def test_nothing_is_drafted_where_a_state_cannot_be_chosen(oracle: Oracle) -> None:
    bench, prompt = Bench(MAMBA), random_tokens(20, 8)
    expected = without_drafts(MAMBA).run_alone(prompt, 12)
    oracle.learn(expected)
    assert bench.run_alone(prompt, 12).tokens == expected.tokens
    assert bench.runner.drafts.drafts == 0
    assert "a function that is not known" in bench.runner.support.draft_refusal


@pytest.mark.parametrize("architecture", DRAFTING_STATES, ids=lambda a: a.name)
def test_tokens_and_states_after_drafts_are_those_without(
    oracle: Oracle, architecture: Architecture
) -> None:
    cold, bench = without_drafts(architecture), Bench(architecture)
    prompts = [random_tokens(length, length) for length in (5, 9, 39)]
    expected = [cold.join(prompt, 20) for prompt in prompts]
    cold.finish()
    oracle.learn(*expected)
    runs = [bench.join(prompt, 20) for prompt in prompts]
    while any(len(run.tokens) < 6 for run in runs):
        bench.step()
    for run in runs:
        found = bench.runner.sequences.find(run.uid)
        assert found is not None, "no answer has ended"
        fresh = make_row_caches(bench.network)
        # The prompt in one pass and each token of the answer in one of its own.
        answer = [[token] for token in found[1][len(run.prompt) :]]
        for piece in (run.prompt, *answer):
            bench.network(mx.array([piece]), cache=fresh)
        assert _largest_difference(found[0], fresh) < BOUND
    bench.finish()
    assert [run.tokens for run in runs] == [run.tokens for run in expected]
    assert bench.runner.drafts.accepted_tokens < bench.runner.drafts.drafted_tokens


def _largest_difference(caches: list[Any], others: list[Any]) -> float:
    """Return the largest difference of two states, in times the largest of their values."""
    pairs = [
        (one, other)
        for leaf, held in zip(leaves(caches), leaves(others), strict=True)
        if is_state(leaf)
        for one, other in zip(leaf.cache, held.cache, strict=True)
    ]
    assert pairs, "the network has states"
    return max(float(mx.max(mx.abs(a - b)) / mx.max(mx.abs(b))) for a, b in pairs)


@pytest.mark.parametrize(
    "architecture",
    [LLAMA, QWEN3_5, pytest.param(LFM2, marks=pytest.mark.nightly)],
    ids=lambda a: a.name,
)
def test_contexts_with_drafts_are_reused_in_memory_and_from_the_disk(
    oracle: Oracle, architecture: Architecture, tmp_path: Path
) -> None:
    cold, prompt = without_drafts(architecture), random_tokens(50, 5)
    first = cold.run_alone(prompt, TOKENS)
    second_prompt = [*prompt, *first.tokens, *random_tokens(9, 6)]
    second = cold.run_alone(second_prompt, TOKENS)
    third_prompt = [*second_prompt, *second.tokens, *random_tokens(9, 7)]
    third = cold.run_alone(third_prompt, TOKENS)
    oracle.learn(third, second, first)
    bench = DiskBench(architecture, tmp_path)
    assert bench.run_alone(prompt, TOKENS).tokens == first.tokens
    again = bench.run_alone(second_prompt, TOKENS)
    assert (again.tokens, again.cached > len(prompt)) == (second.tokens, True)
    bench.close()
    bench = DiskBench(architecture, tmp_path)
    restarted = bench.run_alone(third_prompt, TOKENS)
    assert (restarted.tokens, restarted.cached > len(second_prompt)) == (third.tokens, True)
    assert bench.runner.drafts.accepted_tokens
    bench.close()


def test_a_repetition_is_found_in_the_sequence_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    make_drafts_free(monkeypatch)
    prompt = random_tokens(8, 8) * 6
    expected, bench = without_drafts(LLAMA).run_alone(prompt, 100), Bench(LLAMA)
    assert bench.run_alone(prompt, 100).tokens == expected.tokens
    assert bench.runner.drafts.accepted_tokens > 0


def test_a_step_returns_the_tokens_of_a_draft_in_order(oracle: Oracle) -> None:
    prompt = random_tokens(20, 2)
    expected = without_drafts(LLAMA).run_alone(prompt, 12)
    oracle.learn(expected)
    bench = Bench(LLAMA)
    run = bench.join(prompt, 12)
    returned = []
    while not run.ended:
        before = len(run.tokens)
        bench.step()
        returned.append(len(run.tokens) - before)
    assert max(returned) > 1
    assert (run.tokens, run.finish) == (expected.tokens, Finish.LENGTH)
