"""Sizes and rules for the shapes of published models, worked out by hand in the comments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.kv.spec import KEPT_CHECKPOINTS, LayerKind, LayerSpec, ModelCacheSpec


def full(kv_heads: int, head_dim: int) -> LayerSpec:
    return LayerSpec(
        kind=LayerKind.FULL,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        element_bytes=2,
    )


def sliding(kv_heads: int, head_dim: int, window: int) -> LayerSpec:
    return LayerSpec(
        kind=LayerKind.SLIDING,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        element_bytes=2,
        window=window,
    )


def spec_of(*layers: LayerSpec) -> ModelCacheSpec:
    return ModelCacheSpec(layers=layers, dtype="bfloat16")


@dataclass(frozen=True)
class Case:
    spec: ModelCacheSpec
    block_bytes: int
    #: Bytes of a tail of 100 tokens.
    tail_bytes: int
    cut_tokens_max: int


CASES = {
    # 32 layers x 2 x 8 heads x 128 x 2 bytes = 131,072 bytes a token
    "Llama 3.1 8B": Case(spec_of(*[full(8, 128)] * 32), 33_554_432, 13_107_200, 256),
    # 28 x 2 x 4 x 128 x 2 = 57,344
    "Qwen 2.5 7B": Case(spec_of(*[full(4, 128)] * 28), 14_680_064, 5_734_400, 256),
    # 36 x 2 x 8 x 128 x 2 = 147,456
    "Qwen 3 8B": Case(spec_of(*[full(8, 128)] * 36), 37_748_736, 14_745_600, 256),
    # 26 x 2 x 1 x 256 x 2 = 26,624; every sixth layer is global, the window is two blocks
    "Gemma 3 1B": Case(
        spec_of(*[full(1, 256) if layer % 6 == 5 else sliding(1, 256, 512) for layer in range(26)]),
        6_815_744,
        2_662_400,
        256,
    ),
    # 2 x 8 x 64 x 2 = 2,048 a token and layer: 12 layers keep 256 tokens, 12 keep 128
    "GPT-OSS 20B": Case(
        spec_of(*[sliding(8, 64, 128), full(8, 64)] * 12), 9_437_184, 4_915_200, 128
    ),
    # 12 x 2 x 2 x 256 x 2 = 24,576 a token, and 36 states of
    # 3 x 8,192 x 2 + 32 x 128 x 128 x 4 = 2,146,304
    "Qwen 3 Next 80B": Case(
        spec_of(
            *[*[LayerSpec(kind=LayerKind.STATE, state_bytes=2_146_304)] * 3, full(2, 256)] * 12
        ),
        6_291_456 + 77_266_944,
        2_457_600 + 77_266_944,
        0,
    ),
}

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@cases
def test_bytes_are_those_worked_out_by_hand(case: Case) -> None:
    assert case.spec.block_bytes == case.spec.bytes_of(256) == case.block_bytes
    assert case.spec.bytes_of(100) == case.tail_bytes
    assert case.spec.stored_bytes(256) == case.block_bytes
    assert case.spec.stored_bytes(100) == case.tail_bytes
    more_checkpoints = (KEPT_CHECKPOINTS - 1) * case.spec.ends_bytes(256)
    assert case.spec.context_bytes(256) == case.block_bytes + more_checkpoints


def test_a_running_window_counts_its_whole_buffer() -> None:
    window = sliding(1, 256, 512)
    spec = spec_of(window, full(1, 256))
    token_bytes = 2 * 256 * 2
    assert spec.live_bytes(600) == 2 * 600 * token_bytes
    assert spec.live_bytes(5_000) == (5_000 + 512 + 64 + 64) * token_bytes


@cases
def test_blocks_can_be_cut_as_far_as_every_layer_allows(case: Case) -> None:
    longest = case.cut_tokens_max
    assert case.spec.cut_tokens_max == longest
    for stored in (1, 100, 128, 129, 255, 256):
        assert case.spec.may_cut(stored) is (stored <= longest)
        assert case.spec.usable_tokens(stored_tokens=stored, matching_tokens=stored) == stored
        assert case.spec.usable_tokens(stored_tokens=stored, matching_tokens=stored - 1) == (
            stored - 1 if stored <= longest else 0
        )


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (255, 1), (256, 1), (257, 2), (22_000, 86)]
)
def test_a_started_block_counts_as_one(tokens: int, blocks: int) -> None:
    assert CASES["Llama 3.1 8B"].spec.blocks_for(tokens) == blocks


@pytest.mark.parametrize(
    ("window", "tokens", "blocks"),
    [
        (128, 1024, 1),
        (256, 1024, 1),
        (300, 1024, 2),
        (512, 1024, 2),
        (1024, 4096, 4),
        (512, 256, 1),
        (512, 0, 0),
        (128, 1024 + 128, 1),
        (128, 1024 + 127, 2),
        (512, 1024 + 1, 3),
    ],
)
def test_a_window_needs_the_blocks_that_it_reaches_into(
    window: int, tokens: int, blocks: int
) -> None:
    layer = sliding(1, 64, window)
    assert spec_of(layer).trailing_blocks(layer, tokens) == blocks


def test_full_attention_needs_all_blocks_and_a_state_the_last() -> None:
    attention = full(1, 64)
    state = LayerSpec(kind=LayerKind.STATE, state_bytes=8)
    spec = spec_of(attention, state)
    assert [spec.trailing_blocks(attention, tokens) for tokens in (0, 256, 700)] == [0, 1, 3]
    assert [spec.trailing_blocks(state, tokens) for tokens in (0, 256, 700)] == [0, 1, 1]


@given(
    window=st.integers(min_value=1, max_value=20),
    tokens=st.integers(min_value=0, max_value=60),
    block_tokens=st.integers(min_value=1, max_value=8),
)
def test_the_gathered_blocks_hold_what_a_window_sees_and_none_is_gathered_in_vain(
    window: int, tokens: int, block_tokens: int
) -> None:
    layer = sliding(1, 1, window)
    spec = ModelCacheSpec(layers=(layer,), dtype="bfloat16", block_tokens=block_tokens)
    needed = set(range(max(0, tokens - window), tokens))
    kept_by_block = []
    for start in range(0, tokens, block_tokens):
        end = min(start + block_tokens, tokens)
        kept_by_block.append(set(range(end - layer.kept_tokens(end - start), end)))
    count = spec.trailing_blocks(layer, tokens)
    gathered = kept_by_block[len(kept_by_block) - count :]
    assert needed <= set().union(*gathered)
    assert all(kept & needed for kept in gathered)


@given(
    window=st.integers(min_value=1, max_value=10),
    stored=st.integers(min_value=1, max_value=8),
    data=st.data(),
)
def test_a_block_is_cut_only_where_the_window_is_whole(
    window: int, stored: int, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(min_value=0, max_value=stored))
    layer = sliding(1, 1, window)
    spec = ModelCacheSpec(layers=(layer,), dtype="bfloat16", block_tokens=8)
    kept = range(stored - layer.kept_tokens(stored), stored)
    seen = range(max(0, cut - window), cut)
    whole = all(token in kept for token in seen)
    assert spec.usable_tokens(stored_tokens=stored, matching_tokens=cut) == (cut if whole else 0)


@pytest.mark.parametrize(
    "shape",
    [
        {"kind": LayerKind.FULL},
        {"kind": LayerKind.FULL, "kv_heads": 1, "key_dim": 0, "value_dim": 8, "element_bytes": 2},
        {"kind": LayerKind.FULL, "kv_heads": 1, "key_dim": 8, "value_dim": -1, "element_bytes": 2},
        {"kind": LayerKind.FULL, "kv_heads": -1, "key_dim": 8, "value_dim": 8, "element_bytes": 2},
        {"kind": LayerKind.FULL, "kv_heads": 1, "key_dim": 8, "element_bytes": 2, "window": 4},
        {"kind": LayerKind.FULL, "kv_heads": 1, "key_dim": 8, "element_bytes": 2, "state_bytes": 4},
        {"kind": LayerKind.SLIDING, "kv_heads": 1, "key_dim": 8, "element_bytes": 2},
        {"kind": LayerKind.SLIDING, "kv_heads": 1, "key_dim": 8, "element_bytes": 2, "window": -1},
        {"kind": LayerKind.STATE},
        {"kind": LayerKind.STATE, "state_bytes": -1},
        {"kind": LayerKind.STATE, "state_bytes": 4, "kv_heads": 1},
        {"kind": LayerKind.STATE, "state_bytes": 4, "value_dim": 1},
    ],
    ids=str,
)
def test_a_layer_that_cannot_be_is_noticed(shape: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        LayerSpec(**shape)


def test_a_cache_of_keys_alone_is_a_layer() -> None:
    layer = LayerSpec(kind=LayerKind.FULL, kv_heads=1, key_dim=128, element_bytes=2)
    assert layer.token_bytes == 256


@pytest.mark.parametrize("tokens", [0, -1, 257])
def test_a_block_of_an_impossible_length_is_noticed(tokens: int) -> None:
    with pytest.raises(AssertionError):
        CASES["Llama 3.1 8B"].spec.bytes_of(tokens)


@pytest.mark.parametrize(
    "flaw", [{"layers": ()}, {"dtype": ""}, {"block_tokens": 0}], ids=["layers", "dtype", "block"]
)
def test_a_model_that_cannot_be_is_noticed(flaw: dict[str, Any]) -> None:
    parts: dict[str, Any] = {"layers": (full(1, 8),), "dtype": "bfloat16"}
    with pytest.raises(AssertionError):
        ModelCacheSpec(**(parts | flaw))
