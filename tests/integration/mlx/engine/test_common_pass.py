"""Prompts start in the pass of the rows that decode, and one that cannot start fails alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.values import Sampling
from tests.support.day_and_night import examples
from tests.support.models.families import every_architecture
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench, MakeBench, Run, make_drafts_free
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    Architecture,
)
from worker.engine.mlx.rows import output_head
from worker.engine.mlx.rows.decode_rows import CLEARED_TOKENS_MIN
from worker.engine.mlx.rows.output_head import find_output_head
from worker.engine.ports import Fault

SAMPLED = Sampling(temperature=0.9, top_p=0.95, seed=11)
TOKENS = 24
ROWS = 8


def watch_passes(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, seen: Callable[[mx.array], None]
) -> None:
    """Call ``seen`` with the tokens of each pass, once the caches are written."""
    kind = type(bench.network)
    compute = kind.__call__

    def watched(network: Any, tokens: mx.array, *args: Any, **more: Any) -> mx.array:
        logits: mx.array = compute(network, tokens, *args, **more)
        seen(tokens)
        return logits

    monkeypatch.setattr(kind, "__call__", watched)


def test_prompts_that_were_prefilled_together_start_in_one_pass(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = bench(LLAMA, step_tokens=256)
    runs = [several.join(random_tokens(9, seed)) for seed in range(ROWS)]
    passes: list[int] = []
    watch_passes(several, monkeypatch, lambda tokens: passes.append(tokens.size))
    while not any(run.tokens for run in runs):
        several.step()
    assert passes == [ROWS * 8, ROWS]
    assert [len(run.tokens) for run in runs] == [1] * ROWS


def test_prompts_of_unequal_length_are_prefilled_together_without_padding(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [random_tokens(length, length) for length in (4, 60, 9, 31)]
    cold, several = bench(LLAMA, budget_bytes=None), bench(LLAMA, step_tokens=64)
    expected = [cold.run_alone(prompt).tokens for prompt in prompts]
    runs = [several.join(prompt) for prompt in prompts]
    passes: list[tuple[int, ...]] = []
    watch_passes(several, monkeypatch, lambda tokens: passes.append(tokens.shape))
    several.finish()
    assert passes[0] == (sum(map(len, prompts)) - len(prompts), 1)
    assert [run.tokens for run in runs] == expected


@pytest.mark.parametrize(("tokens", "times"), [(CLEARED_TOKENS_MIN, 1), (BLOCK, 0)])
def test_buffers_are_given_back_after_large_pieces_only(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch, tokens: int, times: int
) -> None:
    one = bench(LLAMA, step_tokens=CLEARED_TOKENS_MIN)
    run = one.join(random_tokens(tokens + 1, 3))
    cleared: list[int] = []
    monkeypatch.setattr(mx, "clear_cache", lambda: cleared.append(run.uid))
    while not run.tokens:
        one.step()
    assert len(cleared) == times


def test_pieces_of_prompts_are_read_in_the_pass_of_the_rows(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [random_tokens(5, 1), random_tokens(2 * BLOCK + 8, 2)]
    cold, warm = bench(LLAMA, budget_bytes=None), bench(LLAMA)
    expected = [cold.run_alone(prompt).tokens for prompt in prompts]
    runs = [warm.join(prompts[0])]
    warm.step()
    passes: list[tuple[int, int]] = []
    kind = type(warm.network)
    compute = kind.__call__

    def watched(network: Any, tokens: mx.array, *args: Any, **more: Any) -> mx.array:
        logits: mx.array = compute(network, tokens, *args, **more)
        passes.append((tokens.size, logits.shape[0]))
        return logits

    monkeypatch.setattr(kind, "__call__", watched)
    runs.append(warm.join(prompts[1]))
    while not runs[1].tokens:
        warm.step()
    # Each piece beside the token of the row, and no logits of the prompt.
    assert passes == [(BLOCK + 1, 1), (BLOCK + 1, 1), (7 + 1, 1), (2, 2)]
    warm.finish()
    assert [run.tokens for run in runs] == expected


def test_drafts_are_verified_beside_pieces_of_prompts(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_drafts_free(monkeypatch)
    repeated, other = random_tokens(5, 1) * 9, random_tokens(20 * BLOCK, 2)
    cold, warm = bench(LLAMA, budget_bytes=None), bench(LLAMA)
    expected = [cold.run_alone(prompt, TOKENS).tokens for prompt in (repeated, other)]
    runs = [warm.join(repeated, TOKENS)]
    while not runs[0].tokens:
        warm.step()
    before = warm.runner.drafts.drafted_tokens
    runs.append(warm.join(other, TOKENS))
    while not runs[0].ended:
        assert not runs[1].tokens, "the prompt is longer than the answer"
        warm.step()
    assert warm.runner.drafts.drafted_tokens > before
    warm.finish()
    assert [run.tokens for run in runs] == expected


@pytest.mark.parametrize(
    "architecture", [LLAMA, GEMMA3, GPT_OSS], ids=lambda architecture: architecture.name
)
def test_prompt_that_cannot_be_read_beside_rows_fails_alone(
    bench: MakeBench, architecture: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [random_tokens(length, length) for length in (30, 41)]
    cold, warm = bench(architecture, budget_bytes=None), bench(architecture)
    expected = [cold.run_alone(prompt, TOKENS, SAMPLED).tokens for prompt in prompts]
    runs = [warm.join(prompt, TOKENS, SAMPLED) for prompt in prompts]
    while not all(run.tokens for run in runs):
        warm.step()

    def poisoned(tokens: mx.array) -> None:
        if tokens.size == len(runs) + BLOCK - 3:
            raise RuntimeError("the device does not like the second piece")

    watch_passes(warm, monkeypatch, poisoned)
    culprit = warm.join(random_tokens(2 * BLOCK - 2, 3))
    while not culprit.ended:
        warm.step()
        warm.check()
    assert culprit.fault is not None
    assert not any(run.fault for run in runs)
    warm.finish(*runs)
    assert [run.tokens for run in runs] == expected


def test_suspect_is_read_in_a_pass_of_its_own(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = bench(LLAMA)
    several.join(random_tokens(9, 1), TOKENS)
    several.step()
    passes: list[int] = []
    watch_passes(several, monkeypatch, lambda tokens: passes.append(tokens.size))
    admission = several.admission(random_tokens(BLOCK + 1, 2))
    several.join_as(replace(admission, is_alone=True))
    several.step()
    assert passes == [BLOCK, 2]


@every_architecture
def test_networks_compute_the_logits_of_some_tokens_only(
    bench: MakeBench, architecture: Architecture
) -> None:
    network = bench(architecture).network
    head = find_output_head(network)
    assert head is not None
    assert find_output_head(network) is head
    tokens = mx.array([[3], [1], [2]])
    every_logit = network(tokens)
    with head.of(2):
        some = network(tokens)
    assert some.shape == (2, 1, every_logit.shape[-1])
    assert mx.allclose(some, every_logit[:2], atol=1e-4)
    assert network(tokens).shape[0] == len(tokens)


def test_network_with_an_unknown_head_reads_prompts_apart(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output_head, "_HEAD", "another_name")
    network = GPT_OSS.make(mx.float32)
    apart = bench(GPT_OSS, network=network)
    assert find_output_head(network) is None
    first = apart.join(random_tokens(9, 1), TOKENS)
    apart.step()
    passes: list[int] = []
    watch_passes(apart, monkeypatch, lambda tokens: passes.append(tokens.size))
    apart.join(random_tokens(BLOCK + 1, 2))
    apart.step()
    assert passes == [BLOCK, 2]
    apart.finish(first)


@every_architecture
def test_rows_that_start_beside_others_have_their_own_tokens(
    bench: MakeBench, architecture: Architecture
) -> None:
    # With prompts of one token, whose states are empty when they start.
    prompts = [random_tokens(length, length + 40) for length in (1, 1, 20, 1, 37, 2)]
    cold, beside = bench(architecture, budget_bytes=None), bench(architecture, budget_bytes=None)
    expected = [cold.run_alone(prompt, 12, SAMPLED).tokens for prompt in prompts]
    runs = [beside.join(prompt, 12, SAMPLED) for prompt in prompts[:3]]
    while not runs[2].tokens:
        beside.step()
    runs += [beside.join(prompt, 12, SAMPLED) for prompt in prompts[3:]]
    beside.finish()
    assert [run.tokens for run in runs] == expected


@pytest.mark.parametrize(
    ("architecture", "starting"),
    # Prompts of a network with states are computed one by one, and start so.
    [(LLAMA, 1), (LLAMA, 3), (GEMMA3, 3), (GPT_OSS, 1), (FALCON_H1, 1)],
    ids=lambda value: getattr(value, "name", None),
)
def test_prompt_that_cannot_start_fails_alone_and_changes_no_token(
    bench: MakeBench, architecture: Architecture, monkeypatch: pytest.MonkeyPatch, starting: int
) -> None:
    prompts = [random_tokens(length, length) for length in (30, 41)]
    cold, warm = bench(architecture, budget_bytes=None), bench(architecture, step_tokens=64)
    expected = [cold.run_alone(prompt, TOKENS, SAMPLED).tokens for prompt in prompts]
    runs = [warm.join(prompt, TOKENS, SAMPLED) for prompt in prompts]
    while not all(run.tokens for run in runs):
        warm.step()

    def poisoned(tokens: mx.array) -> None:
        if tokens.shape == (len(runs) + starting, 1):
            raise RuntimeError("the device does not like these tokens")

    watch_passes(warm, monkeypatch, poisoned)
    started = [warm.join(random_tokens(9, seed)) for seed in range(starting)]
    faults: Sequence[Fault] = ()
    while not faults:
        step = warm.runner.step()
        for uid, token, finish in step.tokens:
            warm.runs[uid].tokens.append(token)
            warm.runs[uid].finish = finish
        faults = step.faults
        warm.check()
    assert {fault.uid for fault in faults} == {run.uid for run in started}
    # The engine computes each of several again alone, so that the cause fails alone.
    assert [fault.is_shared for fault in faults] == [starting > 1] * starting
    for run in started:
        del warm.runs[run.uid]
    warm.finish()
    assert [run.tokens for run in runs] == expected


def test_error_of_the_sampler_while_rows_start_concerns_the_whole_batch(
    bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = bench(LLAMA)
    several.join(random_tokens(9, 1))

    def failing(*_: object) -> mx.array:
        raise RuntimeError("nothing can be drawn")

    monkeypatch.setattr(several.runner.sequences._rows, "_sampler", failing)
    with pytest.raises(RuntimeError, match="nothing can be drawn"):
        several.step()
    several.runner.reset()
    several.runs.clear()


@examples(2, night=6)
@given(data=st.data())
@pytest.mark.parametrize("architecture", [LLAMA, GEMMA3, GPT_OSS], ids=lambda a: a.name)
def test_rows_that_join_and_leave_change_no_token_of_the_others(
    architecture: Architecture, data: st.DataObject
) -> None:
    bench, cold = Bench(architecture, step_tokens=4 * BLOCK), Bench(architecture, budget_bytes=None)
    runs: list[Run] = []
    for seed in range(ROWS + 4):
        length = data.draw(st.integers(1, 5 * BLOCK), label="length")
        # A repetition, so that drafts are verified beside rows that start.
        prompt = (random_tokens(5, seed) * length)[:length]
        rules = data.draw(st.sampled_from((Sampling(temperature=0), SAMPLED)), label="rules")
        runs.append(bench.join(prompt, TOKENS // 2, rules))
        live = [run for run in runs if not run.ended and run.uid in bench.runs]
        if len(live) >= ROWS:
            bench.leave(data.draw(st.sampled_from(live), label="leaves"))
        for _ in range(data.draw(st.integers(0, 3), label="steps")):
            bench.step()
            bench.check()
    bench.finish()
    for run in runs:
        expected = cold.run_alone(run.prompt, TOKENS // 2, run.sampling).tokens
        assert run.tokens == expected[: len(run.tokens)]
    bench.close()
