"""Keys and values in 8 bits: one form for rows, parked contexts and files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import mlx.core as mx
import pytest
from hypothesis import given, settings
from structlog.testing import capture_logs

from domain.events.cache import CacheBlockRejected
from domain.kv.hashing import pack_ids
from domain.values import Sampling
from ops.blockstore.blocks import (
    BlockPayload,
    NewBlock,
    RawTensor,
    RejectReason,
    StoredBlock,
)
from tests.support.day_and_night import in_turn
from tests.support.models.disk_bench import DiskBench
from tests.support.models.families import network_of
from tests.support.models.kv_sequences import random_tokens
from tests.support.models.runner_probe import BLOCK, Bench, make_drafts_free
from tests.support.models.tiny_architectures import (
    FALCON_H1_WIDE,
    GEMMA3N,
    GLM4_MOE_LITE,
    LLAMA,
    MAMBA2,
    QWEN3_DEEP,
    QWEN3_DEEP_8_BITS,
    QWEN3_WIDE,
    WIDE_ARCHITECTURES,
    Architecture,
)
from worker.engine.mlx.kv import packed_cache
from worker.engine.mlx.kv.codec import to_raw
from worker.engine.mlx.kv.packed_cache import (
    DIRECT_TOKENS_MAX,
    PackedKVCache,
    attention_of_row,
)
from worker.engine.mlx.kv.probe import packed_spec, probe_spec
from worker.engine.mlx.kv.window_cache import leaves
from worker.engine.mlx.model.loader import LoadedWeights
from worker.engine.mlx.rows.ragged_cache import RaggedCache
from worker.engine.mlx.rows.ragged_states import find_row_support
from worker.engine.mlx.solo import SoloRun

PROMPTS = [random_tokens(length, seed) for length, seed in ((75, 1), (44, 2), (21, 3), (90, 4))]
ANSWER = 10

wide = pytest.mark.parametrize("architecture", WIDE_ARCHITECTURES, ids=lambda one: one.name)
MakeBench = Callable[..., DiskBench]


# --- attention -----------------------------------------------------------------------------------


def _cache(tokens: int, dtype: mx.Dtype, kv_heads: int = 2, dim: int = 64) -> PackedKVCache:
    cache = PackedKVCache(group=64, step=16)
    mx.random.seed(tokens)
    shape = (1, kv_heads, tokens, dim)
    cache.update_and_fetch(*(mx.random.normal(shape).astype(dtype) for _ in range(2)))
    return cache


@settings(max_examples=40, derandomize=True, deadline=None, database=None)
@given(
    tokens=st.integers(1, 70),
    new=st.integers(1, DIRECT_TOKENS_MAX),
    repeats=st.integers(1, 3),
    dim=st.sampled_from([64, 128]),
    by_blas=st.booleans(),
    mask=st.sampled_from(["causal", "bool", "added", None]),
    sinks=st.booleans(),
)
def test_scores_of_the_8_bits_are_those_of_a_dequantised_copy(
    tokens: int, new: int, repeats: int, dim: int, mask: str | None, *, sinks: bool, by_blas: bool
) -> None:
    new = min(new, tokens)
    keys, values = _cache(tokens, mx.float32, dim=dim).keys_and_values()
    queries = mx.random.normal((1, 2 * repeats, new, dim))
    given_mask: Any = mask
    if mask in {"bool", "added"}:
        seen = mx.arange(tokens - new, tokens)[:, None] >= mx.arange(tokens)
        given_mask = seen if mask == "bool" else mx.where(seen, 0.0, -1e9)
    sink = mx.random.normal((2 * repeats,)) if sinks else None
    with mock.patch.object(packed_cache, "BLAS_TOKENS_MIN", 0 if by_blas else 1 << 30):
        found = attention_of_row(queries, keys, values, 0.125, given_mask, sink)
    expected = mx.fast.scaled_dot_product_attention(
        queries, keys.exact(), values.exact(), scale=0.125, mask=given_mask, sinks=sink
    )
    assert float(mx.abs(found - expected).max()) < 1e-5


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_each_element_is_within_some_steps_of_its_group(dtype: mx.Dtype) -> None:
    mx.random.seed(5)
    given_keys, given_values = (mx.random.normal((1, 2, 33, 128)).astype(dtype) for _ in range(2))
    keys, values = PackedKVCache(group=64).update_and_fetch(given_keys, given_values)
    # A scale and a bias of 8 significant bits move the ends of a group.
    steps_max = {mx.float32: 1.0, mx.float16: 1.5}.get(dtype, 3.0)
    for exact, found in ((given_keys, keys), (given_values, values)):
        assert found.exact().dtype == dtype
        groups = exact.astype(mx.float32).reshape(-1, 64)
        step = (groups.max(axis=1) - groups.min(axis=1)) / 255
        error = mx.abs(groups - found.exact().astype(mx.float32).reshape(-1, 64)).max(axis=1)
        assert float((error / step).max()) <= steps_max


def test_tokens_are_appended_and_taken_back_in_place() -> None:
    cache, whole = _cache(20, mx.float32), _cache(40, mx.float32)
    assert cache.words is not None
    assert cache.words.shape[2] == 32, "buffers grow by steps"
    keys, values = whole.keys_and_values()
    cache.trim(20)
    for first in range(0, 40, 8):
        pieces = (one.exact()[:, :, first : first + 8] for one in (keys, values))
        cache.update_and_fetch(*pieces)
    for one, other in zip(cache.keys_and_values(), (keys, values), strict=True):
        assert float(mx.abs(one.exact() - other.exact()).max()) < 0.05
    assert (cache.trim(50), cache.size()) == (40, 0)


# --- the engine ----------------------------------------------------------------------------------


@wide
def test_rows_of_unequal_length_draw_what_each_draws_alone(architecture: Architecture) -> None:
    alone = Bench(architecture, kv_bits=8)
    expected = [alone.run_alone(prompt, ANSWER).tokens for prompt in PROMPTS]
    together = Bench(architecture, kv_bits=8)
    runs = [together.join(prompt, ANSWER) for prompt in PROMPTS]
    together.finish()
    assert [run.tokens for run in runs] == expected
    groups = [layer.group for layer in together.reuse._spec.layers]
    assert any(groups)
    for context in together.reuse.pool.contexts():
        held = together.reuse.store.caches(context)
        found = [isinstance(leaf, PackedKVCache) for leaf in held.leaves]
        assert found == [bool(group) for group in groups]
    together.close()


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["gpt_bigcode", "llama4", "phi", "phixtral", "stablelm"])
def test_families_with_attention_of_their_own_draw_what_each_row_draws_alone(family: str) -> None:
    network = network_of(family)
    alone, together = (Bench(LLAMA, network=network, kv_bits=8) for _ in range(2))
    expected = [alone.run_alone(prompt, ANSWER).tokens for prompt in PROMPTS]
    runs = [together.join(prompt, ANSWER) for prompt in PROMPTS]
    together.finish()
    assert [run.tokens for run in runs] == expected
    assert any(layer.group for layer in together.reuse._spec.layers)


def test_drafts_are_verified_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    make_drafts_free(monkeypatch)
    prompt = random_tokens(24, 9) * 3
    plain = Bench(QWEN3_DEEP_8_BITS)
    plain.runner.speculates = False
    plain.runner.reset()
    expected = plain.run_alone(prompt, 40).tokens
    drafting = Bench(QWEN3_DEEP_8_BITS)
    assert drafting.run_alone(prompt, 40).tokens == expected
    assert drafting.runner.drafts.drafted_tokens > 0
    drafting.close()


def test_a_replay_computes_in_the_form_of_the_engine() -> None:
    bench = Bench(QWEN3_DEEP_8_BITS)
    expected = bench.run_alone(PROMPTS[0], ANSWER).tokens
    support = find_row_support(bench.network)
    weights = LoadedWeights(bench.network, frozenset(), bench.model, support, kv_bits=8)
    run = SoloRun(weights, Sampling(temperature=0), step_tokens=BLOCK)
    caches = run._sequences._new_caches()
    assert [isinstance(leaf, PackedKVCache) for leaf in leaves(caches)].count(True) == 4
    tokens = run.tokens(PROMPTS[0])
    assert [next(tokens) for _ in expected] == expected
    tokens.close()


def test_the_first_and_the_last_layer_stay_exact_where_memory_allows_it() -> None:
    deep = Bench(QWEN3_DEEP, kv_bits=8).reuse._spec
    assert [layer.group for layer in deep.layers] == [0, 64, 64, 64, 64, 0]
    shallow = Bench(QWEN3_WIDE, kv_bits=8).reuse._spec
    assert [layer.group for layer in shallow.layers] == [64, 64]


@wide
def test_at_least_1_8_times_as_many_tokens_fit(architecture: Architecture) -> None:
    network = architecture.make(mx.bfloat16)
    exact = probe_spec(network, BLOCK)
    packed = packed_spec(network, exact)
    assert packed.full_bytes(BLOCK) * 1.8 <= exact.full_bytes(BLOCK)
    assert packed.ends_bytes(BLOCK) == exact.ends_bytes(BLOCK)


def test_eight_agents_in_turn_fit_where_exact_ones_are_evicted(process: MakeBench) -> None:
    talks = [random_tokens(6 * BLOCK + 5, 50 + agent) for agent in range(8)]
    known: dict[int, list[int]] = {}
    probe = Bench(QWEN3_DEEP_8_BITS).reuse
    budget_bytes = 12 * probe.row_bytes(len(talks[0]) + 3 * ANSWER)
    for kv_bits in (0, 8):
        bench = process(QWEN3_DEEP, kv_bits=kv_bits, budget_bytes=budget_bytes)
        for talk in talks:
            bench.run_alone(talk, ANSWER)
            bench.settle()
        known[kv_bits] = [bench.reuse.cached_prefix([*one, 1]).resident for one in talks]
        again = [bench.run_alone([*one, 1, 2], ANSWER) for one in talks]
        assert all(run.cached >= len(one) - 1 for run, one in zip(again, talks, strict=True))
        bench.check()
    assert min(known[8]) >= len(talks[0]) > min(known[0]), known


def test_the_accounts_are_those_of_the_arrays() -> None:
    bench = Bench(QWEN3_DEEP_8_BITS)
    bench.run_alone(PROMPTS[0], ANSWER)
    (context,) = bench.reuse.pool.contexts()
    assert bench.reuse.store.caches(context).nbytes == context.size_bytes
    bench.close()


@pytest.mark.parametrize(
    ("architecture", "why"),
    [
        (LLAMA, "no layer has keys and values of one length that groups divide"),
        (GEMMA3N, "no layer has keys and values of one length that groups divide"),
        (MAMBA2, "no layer has keys and values of one length that groups divide"),
        (GLM4_MOE_LITE, "no layer has keys and values of one length that groups divide"),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_layers_that_cannot_be_in_8_bits_stay_exact_for_a_stated_reason(
    architecture: Architecture, why: str
) -> None:
    with capture_logs() as logs:
        bench = Bench(architecture, kv_bits=8)
    assert [one["why"] for one in logs if one["event"] == "kv_stays_exact"] == [why]
    exact = Bench(architecture, kv_bits=0)
    assert bench.run_alone(PROMPTS[0]).tokens == exact.run_alone(PROMPTS[0]).tokens
    assert bench.reuse.fingerprint == exact.reuse.fingerprint


def test_a_network_that_reads_its_keys_itself_stays_exact() -> None:
    network = QWEN3_WIDE.make(mx.float32)
    inner = type(network)

    class Reader(inner):  # type: ignore[misc, valid-type]  # a class of mlx-lm
        def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
            found: mx.array = super().__call__(tokens, cache=cache)
            for leaf in leaves(cache or []):
                assert isinstance(leaf, RaggedCache) or leaf.keys is not None
            return found

    Reader.__module__ = inner.__module__
    network.__class__ = Reader
    with capture_logs() as logs:
        bench = Bench(QWEN3_WIDE, network=network, kv_bits=8)
    (why,) = [one["why"] for one in logs if one["event"] == "kv_stays_exact"]
    assert "keys" in why
    assert bench.run_alone(PROMPTS[2]).fault is None


# --- the disk ------------------------------------------------------------------------------------


def _payload(block: StoredBlock) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (raw.dtype, tuple(raw.shape), bytes(raw.joined()))
        for name, raw in block.payload.items()
    }


@pytest.mark.parametrize("architecture", [QWEN3_DEEP_8_BITS, replace(FALCON_H1_WIDE, kv_bits=8)])
def test_files_rows_and_parked_contexts_have_the_same_bytes(
    process: MakeBench, architecture: Architecture
) -> None:
    first = process(architecture)
    prompt = random_tokens(5 * BLOCK + 5, 21)
    expected = first.run_alone(prompt, ANSWER).tokens
    first.settle()
    (context,) = first.reuse.pool.contexts()
    names, fingerprint = list(context.names), first.reuse.fingerprint

    def held(bench: DiskBench, at: int) -> BlockPayload:
        (one,) = bench.reuse.pool.contexts()
        return to_raw(bench.reuse.store.caches(one).read(at * BLOCK, (at + 1) * BLOCK))

    parked = [
        {name: (raw.dtype, tuple(raw.shape), bytes(raw.joined())) for name, raw in one.items()}
        for one in (held(first, at) for at in range(5))
    ]
    first.close()
    for name, one in zip(names, parked, strict=False):
        stored = first.store.get(name, fingerprint)
        assert isinstance(stored, StoredBlock)
        assert _payload(stored) == one
    second = process(architecture)
    run = second.run_alone(prompt, ANSWER)
    assert (run.tokens, run.cached, second.computed) == (expected, len(prompt) - 1, 0)
    again = [
        {name: (raw.dtype, tuple(raw.shape), bytes(raw.joined())) for name, raw in one.items()}
        for one in (held(second, at) for at in range(5))
    ]
    assert again == parked


def test_blocks_of_the_other_form_are_not_used_and_both_live_side_by_side(
    process: MakeBench,
) -> None:
    prompt = random_tokens(5 * BLOCK + 5, 21)
    packed = process(QWEN3_DEEP, kv_bits=8).run_alone(prompt, ANSWER).tokens
    exact = process(QWEN3_DEEP, kv_bits=0)
    run = exact.run_alone(prompt, ANSWER)
    assert (run.cached, exact.events) == (0, [])
    again = process(QWEN3_DEEP, kv_bits=8).run_alone(prompt, ANSWER)
    assert (again.tokens, again.cached) == (packed, len(prompt) - 1)
    last = process(QWEN3_DEEP, kv_bits=0).run_alone(prompt, ANSWER)
    assert (last.tokens, last.cached) == (run.tokens, len(prompt) - 1)


@in_turn(
    "lie, part",
    ["missing", "type", "shape", "exact"],
    {part: part for part in ("words", "scales", "biases")},
)
def test_a_file_with_other_parts_is_rejected_and_computed_again(
    process: MakeBench, part: str, lie: str
) -> None:
    prompt = random_tokens(3 * BLOCK + 5, 21)
    first = process(QWEN3_DEEP_8_BITS)
    expected = first.run_alone(prompt, ANSWER).tokens
    names = list(first.reuse.pool.hasher.chain(pack_ids(prompt), BLOCK))
    fingerprint = first.reuse.fingerprint
    first.close()
    stored = first.store.get(names[1], fingerprint)
    assert isinstance(stored, StoredBlock)
    payload = dict(stored.payload)
    name = next(name for name in payload if name.endswith(f".{part}"))
    raw = payload.pop(name)
    data = bytes(raw.joined())
    if lie == "type":
        payload[name] = RawTensor("I32", raw.shape, data)
    elif lie == "shape":
        rows, one, heads, tokens, dim = raw.shape
        payload[name] = RawTensor(raw.dtype, (rows, one, heads * 2, tokens // 2, dim), data)
    elif lie == "exact":
        payload[name.replace(part, "k")] = raw
    assert first.store.delete(names[1])
    changed = NewBlock(
        hash=names[1],
        parent=names[0],
        fingerprint=fingerprint,
        token_ids=stored.token_ids,
        payload=payload,
    )
    first.store.put_many([changed])
    second = process(QWEN3_DEEP_8_BITS)
    run = second.run_alone(prompt, ANSWER)
    assert (run.tokens, run.cached) == (expected, BLOCK)
    (rejected,) = [event for event in second.events if isinstance(event, CacheBlockRejected)]
    assert (rejected.block, rejected.reason) == (names[1].hex(), RejectReason.FOREIGN)
