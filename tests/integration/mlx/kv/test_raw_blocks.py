"""Blocks as bytes and back."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import mlx.core as mx
import pytest

from ops.blockstore.payload import BlockPayload, RawTensor
from tests.support.models.kv_sequences import Sequence1, block_difference, random_tokens, restore
from tests.support.models.tiny_architectures import (
    ARCHITECTURES,
    FALCON_H1,
    GEMMA3,
    LLAMA,
    QWEN2,
    Architecture,
)
from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.kv.raw import BadPayload, check_fit, from_raw, to_raw

PROMPT = random_tokens(20, seed=1)


def block_of(architecture: Architecture, dtype: mx.Dtype = mx.float32) -> tuple[Any, Sequence1]:
    model = architecture.make(dtype)
    sequence = Sequence1(model, probe_spec(model, 8))
    sequence.prefill_blocks(PROMPT, len(PROMPT))
    return model, sequence


def through_bytes(payload: BlockPayload) -> BlockPayload:
    """Return what a file or another thread would give back."""
    return {
        name: RawTensor(raw.dtype, raw.shape, bytes(raw.joined())) for name, raw in payload.items()
    }


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_block_survives_the_way_through_bytes_bit_for_bit(architecture: Architecture) -> None:
    model, sequence = block_of(architecture)
    tail = sequence.tail()
    assert tail is not None
    loaded = [
        from_raw(through_bytes(to_raw(block)), block.tokens) for block in (*sequence.blocks, tail)
    ]
    for block, same in zip((*sequence.blocks, tail), loaded, strict=True):
        assert block_difference(block, same) == 0
        check_fit(sequence.spec, same)
    restored = restore(model, sequence.spec, loaded[:-1], loaded[-1])
    assert restored.decode([1])[0] == sequence.decode([1])[0]


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
def test_every_bit_pattern_of_a_float_survives(dtype: mx.Dtype) -> None:
    bits = mx.arange(0, 65536, dtype=mx.uint16).view(dtype).reshape(1, 2, -1, 8)
    payload = to_raw(BlockArrays(bits.shape[2], {"0.k": bits, "0.v": bits}))
    again = from_raw(through_bytes(payload), bits.shape[2])
    assert bool(mx.array_equal(again.tensors["0.v"].view(mx.uint16), bits.view(mx.uint16)))
    assert again.tensors["0.k"].dtype == dtype


def test_layers_of_one_shape_are_one_tensor() -> None:
    _, sequence = block_of(QWEN2, mx.bfloat16)
    payload = to_raw(sequence.blocks[0])
    assert {name: (raw.dtype, raw.shape) for name, raw in payload.items()} == {
        "0-2.k": ("BF16", (3, 1, 2, 8, 8)),
        "0-2.v": ("BF16", (3, 1, 2, 8, 8)),
    }
    _, hybrid = block_of(FALCON_H1)
    assert sorted(to_raw(hybrid.blocks[0])) == ["0,2.s0", "0,2.s1", "1,3.k", "1,3.v"]


def test_window_shorter_than_the_block_is_a_tensor_of_its_own() -> None:
    model = GEMMA3.make(mx.float32)
    sequence = Sequence1(model, probe_spec(model, 16))
    sequence.prefill_blocks(PROMPT, 16)
    assert sorted(to_raw(sequence.blocks[0])) == ["0-1,3.k", "0-1,3.v", "2.k", "2.v"]


def test_payload_outlives_the_block_and_cannot_be_written() -> None:
    _, sequence = block_of(LLAMA)
    (raw, *_) = to_raw(sequence.blocks.pop(0)).values()
    assert all(part.readonly and part.format == "B" for part in raw.parts)
    copied = bytes(raw.joined())
    mx.eval(mx.zeros(1 << 16))
    assert bytes(raw.joined()) == copied


def test_layer_that_keeps_no_values_is_a_tensor_without_bytes() -> None:
    block = BlockArrays(4, {"0.k": mx.ones((1, 1, 4, 2)), "0.v": mx.zeros((1, 1, 4, 0))})
    payload = to_raw(block)
    assert payload["0.v"].nbytes == 0
    assert block_difference(from_raw(payload, 4), block) == 0


GOOD = RawTensor("F32", (1, 2), bytes(8))


@pytest.mark.parametrize(
    "payload",
    [
        {"0.k": RawTensor("F32", (1, 3), bytes(8))},
        {"0.k": RawTensor("F32", (-1, -2), bytes(8))},
        {"0.k": RawTensor("F7", (1, 2), bytes(8))},
        {"0.k": RawTensor("F32", (), bytes(4))},
        {"0-1.k": GOOD},
        {"0-999999999999.k": GOOD},
        {"k": GOOD},
        {"a-b.k": GOOD},
    ],
    ids=lambda payload: next(iter(payload)),
)
def test_payload_that_contradicts_itself_is_refused(payload: BlockPayload) -> None:
    with pytest.raises(BadPayload):
        from_raw(payload, 1)


def test_block_of_another_model_does_not_fit() -> None:
    _, sequence = block_of(FALCON_H1)
    good = dict(sequence.blocks[0].tensors)
    check_fit(sequence.spec, BlockArrays(8, good))
    broken: list[tuple[int, dict[str, mx.array]]] = [
        (7, good),
        (8, good | {"1.k": good["1.k"].astype(mx.bfloat16)}),
        (8, good | {"1.v": good["1.v"][:, :1]}),
        (8, good | {"9.k": good["1.k"]}),
        (8, good | {"0.s2": good["0.s1"]}),
        (8, {name: tensor for name, tensor in good.items() if name != "0.s1"}),
        (8, {name: tensor for name, tensor in good.items() if name != "3.v"}),
    ]
    for tokens, tensors in broken:
        with pytest.raises(BadPayload):
            check_fit(sequence.spec, BlockArrays(tokens, MappingProxyType(tensors)))
