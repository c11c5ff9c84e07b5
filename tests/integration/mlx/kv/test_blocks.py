"""Blocks cut from mlx-lm's caches, and sequences that go on from them as if never cut."""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import (
    ArraysCache,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
    make_prompt_cache,
)

from domain.kv.spec import WINDOW_SLACK_TOKENS, LayerKind, LayerSpec, ModelCacheSpec
from tests.support.models.kv_sequences import (
    Sequence1,
    block_difference,
    difference,
    random_tokens,
    restore,
)
from tests.support.models.tiny_architectures import (
    ARCHITECTURES,
    FALCON_H1,
    GEMMA3,
    LLAMA,
    MAMBA2,
    QWEN2,
    QWEN3,
    WINDOW,
    Architecture,
)
from worker.engine.mlx.kv.leaves import UnsupportedCache
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.kv.split import extract

PROMPT = random_tokens(53, seed=1)
#: Shorter and longer than the window.
BLOCK_SIZES = (8, 16)
#: A prompt computed in pieces and in one go gives the same bits where no kernel's shape depends on
#: how the prompt was cut; else sums are taken in another order. Measured here: 7.3e-6 (gemma3).
EXACT_IN_PIECES = ("llama", "qwen2", "qwen3", "qwen3_next")
LOGITS_BOUND = 5e-5
#: mlx's CPU kernels for experts know float32 only.
IN_BFLOAT16 = (LLAMA, QWEN2, QWEN3, GEMMA3, FALCON_H1, MAMBA2)

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
block_sizes = pytest.mark.parametrize("block_tokens", BLOCK_SIZES)


@cache
def network(architecture: Architecture, dtype: mx.Dtype = mx.float32) -> Any:
    return architecture.make(dtype)


@cache
def cold(architecture: Architecture) -> tuple[list[int], mx.array]:
    model = network(architecture)
    return Sequence1(model, probe_spec(model, 8)).decode(PROMPT)


def stops(block_tokens: int) -> list[int]:
    """Every border, and tails of one token, of a few, and of all but one."""
    borders = range(block_tokens, len(PROMPT), block_tokens)
    return sorted({1, 3, *borders, *(b + 1 for b in borders), *(b - 1 for b in borders), 52})


@architectures
def test_probed_spec_equals_the_one_worked_out_by_hand(architecture: Architecture) -> None:
    spec = probe_spec(network(architecture), 16)
    assert spec == ModelCacheSpec(layers=architecture.layers, dtype="float32", block_tokens=16)


def test_probed_spec_of_half_precision_counts_two_bytes_an_element() -> None:
    spec = probe_spec(network(LLAMA, mx.bfloat16))
    layer = LayerSpec(kind=LayerKind.FULL, kv_heads=2, key_dim=8, value_dim=8, element_bytes=2)
    assert spec == ModelCacheSpec(layers=(layer,) * 2, dtype="bfloat16", block_tokens=256)


class _Growing:
    """A network whose state is as long as its context, or is never written."""

    def __init__(self, leaf: Any, *, writes: bool = True) -> None:
        self._leaf = leaf
        self._writes = writes
        self._tokens = 0

    def make_cache(self) -> list[Any]:
        return [self._leaf]

    def __call__(self, tokens: mx.array, cache: list[Any]) -> None:
        self._tokens += tokens.shape[1]
        if self._writes:
            cache[0][0] = mx.zeros((1, self._tokens))


class _Renamed(KVCache):  # type: ignore[misc]  # mlx-lm ships no types
    pass


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (_Growing(ChunkedKVCache(8)), "ChunkedKVCache is not known"),
        (_Growing(_Renamed()), "_Renamed is not known"),
        (_Growing(RotatingKVCache(8, keep=4)), "RotatingKVCache that always keeps its first 4"),
        (_Growing(ArraysCache(1)), "grows with the context"),
        (_Growing(ArraysCache(1), writes=False), "ArraysCache, stays empty"),
        (_Growing(KVCache(), writes=False), "KVCache, stays empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_cache_that_cannot_be_restored_is_refused_by_name(model: Any, reason: str) -> None:
    with pytest.raises(UnsupportedCache, match=reason):
        probe_spec(model)


@architectures
@block_sizes
def test_restored_sequence_goes_on_as_if_never_cut(
    architecture: Architecture, block_tokens: int
) -> None:
    model = network(architecture)
    spec = probe_spec(model, block_tokens)
    uncut = Sequence1(model, spec)
    cold_tokens, cold_logits = cold(architecture)
    for stop in stops(block_tokens):
        uncut.prefill_blocks(PROMPT, stop)
        restored = restore(model, spec, uncut.blocks, uncut.tail())
        tokens, logits = restored.decode(PROMPT[stop:])
        same_tokens, same_logits = uncut.fork().decode(PROMPT[stop:])
        assert tokens == same_tokens == cold_tokens
        # Cutting and restoring adds no difference at all to that of computing in pieces.
        assert difference(logits, same_logits) == 0
        bound = 0 if architecture.name in EXACT_IN_PIECES else LOGITS_BOUND
        assert difference(logits, cold_logits) <= bound


@pytest.mark.parametrize("architecture", IN_BFLOAT16, ids=lambda a: a.name)
def test_restored_sequence_in_bfloat16_goes_on_as_if_never_cut(architecture: Architecture) -> None:
    model = network(architecture, mx.bfloat16)
    spec = probe_spec(model, 8)
    uncut = Sequence1(model, spec)
    for stop in (8, 17, 40, 52):
        uncut.prefill_blocks(PROMPT, stop)
        tokens, logits = restore(model, spec, uncut.blocks, uncut.tail()).decode(PROMPT[stop:])
        same_tokens, same_logits = uncut.fork().decode(PROMPT[stop:])
        assert tokens == same_tokens
        assert difference(logits, same_logits) == 0


@architectures
@block_sizes
def test_tail_is_cut_where_the_spec_allows_it(
    architecture: Architecture, block_tokens: int
) -> None:
    model = network(architecture)
    spec = probe_spec(model, block_tokens)
    first = Sequence1(model, spec)
    first.prefill_blocks(PROMPT, 2 * block_tokens)
    for stored in (block_tokens // 2, block_tokens):
        longer = first.fork()
        longer.prefill(PROMPT[longer.tokens : longer.tokens + stored])
        tail = longer.cut(2 * block_tokens, 2 * block_tokens + stored)
        for used in range(1, stored):
            if not spec.may_cut(stored):
                with pytest.raises(AssertionError, match="cannot be cut"):
                    restore(model, spec, first.blocks, tail, used)
                continue
            restored = restore(model, spec, first.blocks, tail, used)
            tokens, logits = restored.decode(PROMPT[restored.tokens :])
            cold_tokens, cold_logits = cold(architecture)
            assert tokens == cold_tokens
            assert difference(logits, cold_logits) <= LOGITS_BOUND


@architectures
@block_sizes
def test_blocks_and_caches_share_nothing(architecture: Architecture, block_tokens: int) -> None:
    model = network(architecture)
    spec = probe_spec(model, block_tokens)
    sequence = Sequence1(model, spec)
    sequence.prefill_blocks(PROMPT, block_tokens)
    (block,) = sequence.blocks
    before = {name: mx.array(tensor.tolist()) for name, tensor in block.tensors.items()}
    # Single tokens are written in place, into a window that is full. And a single block is the case
    # to fear: joined with nothing, it could be the block itself that is written into.
    sequence.decode([1])
    restore(model, spec, [block]).decode([1])
    restore(model, spec, [], block).decode([1])
    assert all(difference(block.tensors[name], before[name]) == 0 for name in before)


def test_block_keeps_no_buffer_alive_but_its_own() -> None:
    model = network(QWEN2)
    sequence = Sequence1(model, probe_spec(model, 8))
    sequence.prefill([token % 90 for token in range(2000)])
    mx.eval([leaf.state[:2] for leaf in sequence.caches])
    buffers = sum(leaf.nbytes for leaf in sequence.caches)
    mx.clear_cache()
    with_cache = mx.get_active_memory()
    block = sequence.cut(800, 808)
    with_block = mx.get_active_memory()
    del sequence
    # The allocator rounds each of the six arrays up.
    assert with_block - with_cache <= block.nbytes + 6 * 512
    assert with_cache - mx.get_active_memory() >= 0.99 * (buffers - block.nbytes)


def test_sliding_layer_gives_no_block_that_its_window_has_left() -> None:
    model = network(GEMMA3)
    sequence = Sequence1(model, probe_spec(model, 8))
    # Of a long piece, the window and the tokens behind it are kept.
    sequence.prefill(random_tokens(300, 9))
    sequence.decode([1])
    oldest = 300 - WINDOW - WINDOW_SLACK_TOKENS
    held = sequence.tokens
    assert extract(sequence.caches, held - 8, held, cached_tokens=held) is not None
    assert extract(sequence.caches, oldest, oldest + 8, cached_tokens=held) is not None
    # Of a block that is shorter than the window, all tokens are needed.
    assert extract(sequence.caches, oldest - 1, oldest + 7, cached_tokens=held) is None


def test_state_is_given_only_where_it_stands() -> None:
    model = network(MAMBA2)
    sequence = Sequence1(model, probe_spec(model, 8))
    sequence.prefill(PROMPT[:9])
    assert extract(sequence.caches, 0, 8, cached_tokens=9) is None
    assert extract(sequence.caches, 8, 9, cached_tokens=9) is not None


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_conversation_restored_at_every_turn_equals_the_cold_one(data: st.DataObject) -> None:
    architecture = data.draw(st.sampled_from(ARCHITECTURES))
    block_tokens = data.draw(st.sampled_from((4, 8, 16)))
    turns = data.draw(st.lists(st.integers(1, 20), min_size=2, max_size=5))
    model = network(architecture)
    spec = probe_spec(model, block_tokens)
    prompt = random_tokens(sum(turns), seed=sum(turns))
    sequence = Sequence1(model, spec)
    for turn in turns[:-1]:
        sequence.prefill_blocks(prompt, sequence.tokens + turn)
        blocks = sequence.blocks
        sequence = restore(model, spec, blocks, sequence.tail())
        sequence.blocks = list(blocks)
    tokens, logits = sequence.decode(prompt[sequence.tokens :])
    cold_tokens, cold_logits = Sequence1(model, spec).decode(prompt)
    assert tokens == cold_tokens
    assert difference(logits, cold_logits) <= LOGITS_BOUND


@architectures
def test_two_cuts_of_the_same_tokens_are_the_same_block(architecture: Architecture) -> None:
    model = network(architecture)
    spec = probe_spec(model, 8)
    one, other = Sequence1(model, spec), Sequence1(model, spec)
    one.prefill_blocks(PROMPT, 24)
    other.prefill_blocks(PROMPT, 24)
    assert all(block_difference(a, b) == 0 for a, b in zip(one.blocks, other.blocks, strict=True))
    assert all(block.nbytes == spec.block_bytes for block in one.blocks)
    assert len(make_prompt_cache(model)) <= len(spec.layers)
