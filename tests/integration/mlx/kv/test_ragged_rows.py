"""Rows of unequal length decode in one pass, without padding and without another token."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models import llama

from domain.values import Sampling
from tests.support.models.families import (
    FURTHER_ARCHITECTURES,
    every_architecture_and,
    network_of,
)
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench
from tests.support.models.tiny_architectures import (
    ARCHITECTURES,
    GEMMA3N,
    GLM4_MOE_LITE,
    LLAMA,
    Architecture,
)
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.rows.ragged_cache import (
    RaggedKind,
    install_ragged_attention,
    pass_caches,
)

#: Those whose attention computes row after row.
ROW_AFTER_ROW = tuple(
    one for one in FURTHER_ARCHITECTURES if one.name in {"deepseek_v32", "llama4", "afm7"}
)
RULES = {
    "greedy": Sampling(temperature=0),
    "sampled": Sampling(temperature=0.9, top_p=0.95, seed=5),
}
LENGTHS = (5, 2 * BLOCK, 2 * BLOCK + 5, 9 * BLOCK)
#: The first of the rows grows into its second block, and the third one into its fourth.
TOKENS = 12


@every_architecture_and("sampling", RULES)
def test_tokens_are_the_same_together_and_alone(
    architecture: Architecture, sampling: Sampling
) -> None:
    prompts = [random_tokens(length, length) for length in LENGTHS]
    bench = Bench(architecture, step_tokens=8 * BLOCK)
    runs = [bench.join(prompt, TOKENS, sampling) for prompt in prompts]
    bench.finish()
    cold = Bench(architecture, budget_bytes=None)
    assert [run.tokens for run in runs] == [
        cold.run_alone(prompt, TOKENS, sampling).tokens for prompt in prompts
    ]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_every_architecture_computes_rows_in_one_pass(architecture: Architecture) -> None:
    by_token = architecture is GLM4_MOE_LITE
    expected = RaggedKind.BY_TOKEN if by_token else RaggedKind.WHOLE
    assert install_ragged_attention(architecture.make(mx.float32))[0] is expected


@pytest.mark.parametrize(
    "architecture",
    [LLAMA, GEMMA3N, GLM4_MOE_LITE, *ROW_AFTER_ROW],
    ids=lambda architecture: architecture.name,
)
def test_several_new_tokens_of_each_row_are_those_of_the_row_alone(
    architecture: Architecture,
) -> None:
    model = architecture.make(mx.float32)
    kind = install_ragged_attention(model)[0]
    pieces = [random_tokens(length, length) for length in (1, 9, 4)]
    rows, alone = [], []
    for length, piece in zip((3, 40, 17), pieces, strict=True):
        caches = [make_row_caches(model, BLOCK), make_row_caches(model, BLOCK)]
        for one in caches:
            model(mx.array([random_tokens(length, length)]), cache=one)
        alone.append(model(mx.array([piece]), cache=caches[0])[0])
        rows.append(caches[1])
    tokens = mx.array([token for piece in pieces for token in piece])
    lengths = [len(piece) for piece in pieces]
    caches = pass_caches(rows, lengths, {}, kind)
    together = model(tokens[:, None], cache=caches)[:, 0]
    assert mx.allclose(together, mx.concatenate(alone), atol=1e-4, rtol=1e-4)


def test_rows_take_the_memory_of_their_own_lengths() -> None:
    bench = Bench(LLAMA, budget_bytes=None)
    runs = [bench.join(random_tokens(length, length), 400) for length in LENGTHS]
    while not all(run.tokens for run in runs):
        bench.step()
    held = [bench.runner.sequences.find(run.uid) for run in runs]
    assert all(held)
    token_bytes = 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads, elements, bytes
    for found in held:
        assert found is not None
        caches, tokens = found
        assert sum(cache.nbytes for cache in caches) <= (len(tokens) + 2 * BLOCK) * token_bytes


def test_attention_that_reads_its_keys_itself_computes_row_after_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def own(*args: object, **options: object) -> mx.array:
        return mx.fast.scaled_dot_product_attention(*args[:3], **_without_cache(options))  # type: ignore[arg-type]

    monkeypatch.setattr(llama, "scaled_dot_product_attention", own)
    network = LLAMA.make(mx.float32)
    assert install_ragged_attention(network)[0] is RaggedKind.BY_ROW
    _expect_the_tokens_of_each_row_alone(network)


def test_network_that_counts_positions_outside_of_attention_computes_rows_one_by_one() -> None:
    network = network_of("gpt_bigcode")
    assert not install_ragged_attention(network)[0]
    _expect_the_tokens_of_each_row_alone(network)


def _expect_the_tokens_of_each_row_alone(network: Any) -> None:
    bench = Bench(LLAMA, network=network, step_tokens=8 * BLOCK)
    prompts = [random_tokens(length, length) for length in LENGTHS]
    runs = [bench.join(prompt, TOKENS) for prompt in prompts]
    bench.finish()
    cold = Bench(LLAMA, network=network, budget_bytes=None)
    expected = [cold.run_alone(prompt, TOKENS).tokens for prompt in prompts]
    assert [run.tokens for run in runs] == expected


def _without_cache(options: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in options.items() if name != "cache"}
