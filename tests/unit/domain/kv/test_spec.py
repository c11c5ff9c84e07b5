"""Sizes and rules for the shapes of published models, worked out by hand in the comments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec


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
    #: Bytes of a token in all full-attention layers.
    token_bytes: int
    #: Bytes of a checkpoint after 100 tokens, and after many.
    short_checkpoint: int
    checkpoint: int


CASES = {
    # 32 layers x 2 x 8 heads x 128 x 2 bytes
    "Llama 3.1 8B": Case(spec_of(*[full(8, 128)] * 32), 131_072, 0, 0),
    # 28 x 2 x 4 x 128 x 2
    "Qwen 2.5 7B": Case(spec_of(*[full(4, 128)] * 28), 57_344, 0, 0),
    # 36 x 2 x 8 x 128 x 2
    "Qwen 3 8B": Case(spec_of(*[full(8, 128)] * 36), 147_456, 0, 0),
    # 2 x 1 x 256 x 2 = 1,024 a token and layer; 4 of 26 layers are global, 22 keep 512 tokens
    "Gemma 3 1B": Case(
        spec_of(*[full(1, 256) if layer % 6 == 5 else sliding(1, 256, 512) for layer in range(26)]),
        4_096,
        2_252_800,
        11_534_336,
    ),
    # 2 x 8 x 64 x 2 = 2,048 a token and layer: 12 layers keep all tokens, 12 keep 128
    "GPT-OSS 20B": Case(
        spec_of(*[sliding(8, 64, 128), full(8, 64)] * 12), 24_576, 2_457_600, 3_145_728
    ),
    # 12 x 2 x 2 x 256 x 2 = 24,576 a token, and 36 states of
    # 3 x 8,192 x 2 + 32 x 128 x 128 x 4 = 2,146,304
    "Qwen 3 Next 80B": Case(
        spec_of(
            *[*[LayerSpec(kind=LayerKind.STATE, state_bytes=2_146_304)] * 3, full(2, 256)] * 12
        ),
        24_576,
        77_266_944,
        77_266_944,
    ),
}

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


@cases
def test_bytes_are_those_worked_out_by_hand(case: Case) -> None:
    spec = case.spec
    assert spec.has_ends is (case.checkpoint > 0)
    assert spec.full_bytes(0) == 0
    assert spec.full_bytes(20_000) == 20_000 * case.token_bytes
    assert spec.ends_bytes(100) == case.short_checkpoint
    assert spec.ends_bytes(20_000) == spec.checkpoint_bytes == case.checkpoint


@cases
def test_a_restore_reads_one_checkpoint_and_the_disk_stores_three(case: Case) -> None:
    full_bytes = 20_000 * case.token_bytes
    assert case.spec.stored_bytes(20_000) == full_bytes + case.checkpoint
    assert case.spec.context_bytes(20_000) == full_bytes + 4 * case.checkpoint


def test_checkpoints_of_windows_of_different_lengths_are_largest_after_the_longest() -> None:
    spec = spec_of(sliding(1, 64, 128), sliding(1, 64, 512), full(1, 64))
    assert spec.checkpoint_bytes == (128 + 512) * 256
    assert spec.ends_bytes(300) == (128 + 300) * 256


def test_a_running_window_counts_its_whole_buffer() -> None:
    window = sliding(1, 256, 512)
    spec = spec_of(window, full(1, 256))
    token_bytes = 2 * 256 * 2
    assert spec.live_bytes(600) == 2 * 600 * token_bytes
    assert spec.live_bytes(5_000) == (5_000 + 512 + 64 + 64) * token_bytes


@cases
def test_a_running_context_is_never_smaller_than_what_a_restore_reads(case: Case) -> None:
    for tokens in (1, 100, 256, 512, 700, 20_000):
        assert case.spec.live_bytes(tokens) >= case.spec.stored_bytes(tokens)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(0, 0), (1, 1), (255, 1), (256, 1), (257, 2), (22_000, 86)]
)
def test_a_started_block_counts_as_one(tokens: int, blocks: int) -> None:
    assert CASES["Llama 3.1 8B"].spec.blocks_for(tokens) == blocks


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


@cases
def test_a_negative_length_is_noticed(case: Case) -> None:
    spec = case.spec
    for size in (spec.live_bytes, spec.full_bytes, spec.ends_bytes, spec.blocks_for):
        with pytest.raises(AssertionError):
            size(-1)


@pytest.mark.parametrize(
    "flaw", [{"layers": ()}, {"dtype": ""}, {"block_tokens": 0}], ids=["layers", "dtype", "block"]
)
def test_a_model_that_cannot_be_is_noticed(flaw: dict[str, Any]) -> None:
    parts: dict[str, Any] = {"layers": (full(1, 8),), "dtype": "bfloat16"}
    with pytest.raises(AssertionError):
        ModelCacheSpec(**(parts | flaw))


@given(tokens=st.integers(1, 1 << 16), window=st.integers(1, 4096), state=st.integers(1, 1 << 30))
def test_budget_of_a_context_is_the_smallest_that_holds_it(
    tokens: int, window: int, state: int
) -> None:
    layers = (full(8, 128), sliding(8, 128, window))
    spec = ModelCacheSpec(
        layers=(*layers, LayerSpec(kind=LayerKind.STATE, state_bytes=state)), dtype="float16"
    )
    budget_bytes = spec.budget_bytes(tokens)
    assert spec.contexts_bytes(budget_bytes) >= spec.live_bytes(tokens)
    assert spec.contexts_bytes(budget_bytes - 1) < spec.live_bytes(tokens)
