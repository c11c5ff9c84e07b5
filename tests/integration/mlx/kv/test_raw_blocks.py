"""Blocks and checkpoints as bytes and back."""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import pytest

from domain.kv.spec import LayerKind, ModelCacheSpec
from ops.blockstore.blocks import BlockPayload, RawTensor
from tests.support.models.families import every_architecture
from tests.support.models.kv_sequences import block_difference, random_tokens
from tests.support.models.tiny_architectures import (
    FALCON_H1,
    GEMMA3,
    GPT_OSS,
    LLAMA,
    QWEN2,
    Architecture,
)
from worker.engine.mlx.kv.codec import BadPayload, BlockArrays, check_fit, from_raw, to_raw
from worker.engine.mlx.kv.context_caches import ContextCaches
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.kv.window_cache import make_row_caches

BLOCK = 8
HELD = 3 * BLOCK + 3
PROMPT = random_tokens(HELD, seed=1)


@cache
def _network(architecture: Architecture, dtype: mx.Dtype) -> Any:
    return architecture.make(dtype)


def caches_of(
    architecture: Architecture, dtype: mx.Dtype = mx.float32, tokens: int = HELD
) -> tuple[ModelCacheSpec, ContextCaches]:
    """Return caches that hold the first tokens of the prompt."""
    model = _network(architecture, dtype)
    spec = probe_spec(model, BLOCK)
    caches = ContextCaches(spec, make_row_caches(model, BLOCK))
    model(mx.array([PROMPT[:tokens]]), cache=caches.caches)
    mx.eval([leaf.state for leaf in caches.leaves])
    return spec, caches


def checkpoint_of(architecture: Architecture, position: int) -> tuple[ModelCacheSpec, BlockArrays]:
    """Return the checkpoint after ``position`` tokens, as it is stored."""
    spec, caches = caches_of(architecture, tokens=position)
    tensors = dict(caches.ends_at(position, position))
    start = (position - 1) // BLOCK * BLOCK
    if position - start < BLOCK:
        tensors |= caches.read(start, position).tensors
    return spec, BlockArrays(position - start, MappingProxyType(tensors))


def through_bytes(block: BlockArrays) -> BlockArrays:
    """Return what a file or another thread would give back."""
    payload: BlockPayload = {
        name: RawTensor(raw.dtype, raw.shape, bytes(raw.joined()))
        for name, raw in to_raw(block).items()
    }
    return from_raw(payload, block.tokens)


@every_architecture
def test_blocks_survive_the_way_through_bytes_bit_for_bit(architecture: Architecture) -> None:
    spec, caches = caches_of(architecture)
    for start in range(0, HELD, BLOCK):
        block = caches.read(start, min(start + BLOCK, HELD))
        same = through_bytes(block)
        check_fit(spec, same)
        assert block.tensors.keys() == same.tensors.keys()
        assert not block.tensors or block_difference(block, same) == 0
        assert block.nbytes == spec.full_bytes(block.tokens)


@every_architecture
@pytest.mark.parametrize("position", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, HELD])
def test_checkpoints_survive_the_way_through_bytes_bit_for_bit(
    architecture: Architecture, position: int
) -> None:
    spec, checkpoint = checkpoint_of(architecture, position)
    same = through_bytes(checkpoint)
    assert checkpoint.tensors.keys() == same.tensors.keys()
    assert not same.tensors or block_difference(checkpoint, same) == 0
    check_fit(spec, same, position=position)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16, mx.float32])
def test_every_bit_pattern_of_a_float_survives(dtype: mx.Dtype) -> None:
    bits = mx.arange(0, 65536, dtype=mx.uint16).view(dtype).reshape(1, 2, -1, 8)
    again = through_bytes(BlockArrays(bits.shape[2], {"0.k": bits, "0.v": bits}))
    assert bool(mx.array_equal(again.tensors["0.v"].view(mx.uint16), bits.view(mx.uint16)))
    assert again.tensors["0.k"].dtype == dtype


def test_layers_of_one_shape_are_one_tensor() -> None:
    _, caches = caches_of(QWEN2, mx.bfloat16)
    assert {
        name: (raw.dtype, raw.shape) for name, raw in to_raw(caches.read(0, BLOCK)).items()
    } == {"0-2.k": ("BF16", (3, 1, 2, 8, 8)), "0-2.v": ("BF16", (3, 1, 2, 8, 8))}


def test_a_block_has_the_full_attention_layers_and_a_checkpoint_the_others() -> None:
    _, caches = caches_of(FALCON_H1)
    assert sorted(to_raw(caches.read(0, BLOCK))) == ["1,3.k", "1,3.v"]
    _, whole = checkpoint_of(FALCON_H1, 2 * BLOCK)
    assert sorted(to_raw(whole)) == ["0,2.s0", "0,2.s1"]
    _, tail = checkpoint_of(FALCON_H1, HELD)
    assert sorted(to_raw(tail)) == ["0,2.s0", "0,2.s1", "1,3.k", "1,3.v"]


def test_a_window_longer_than_the_block_is_a_tensor_of_its_own() -> None:
    _, tail = checkpoint_of(GEMMA3, HELD)
    assert {name: raw.shape[-2] for name, raw in to_raw(tail).items()} == {
        "0.k": 12,
        "0.v": 12,
        "1.k": HELD % BLOCK,
        "1.v": HELD % BLOCK,
    }


def test_a_payload_outlives_the_block_and_cannot_be_written() -> None:
    _, caches = caches_of(LLAMA)
    (raw, *_) = to_raw(caches.read(0, BLOCK)).values()
    assert all(part.readonly and part.format == "B" for part in raw.parts)
    copied = bytes(raw.joined())
    del caches
    mx.eval(mx.zeros(1 << 16))
    assert bytes(raw.joined()) == copied


def test_a_layer_that_keeps_no_values_is_a_tensor_without_bytes() -> None:
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
def test_a_payload_that_contradicts_itself_is_refused(payload: BlockPayload) -> None:
    with pytest.raises(BadPayload):
        from_raw(payload, 1)


@every_architecture
def test_a_checkpoint_is_no_block_and_a_block_no_checkpoint(architecture: Architecture) -> None:
    spec, caches = caches_of(architecture)
    if not spec.has_ends:
        return
    for position in (2 * BLOCK, HELD):
        _, checkpoint = checkpoint_of(architecture, position)
        with pytest.raises(BadPayload):
            check_fit(spec, checkpoint)
        block = caches.read(position - checkpoint.tokens, position)
        with pytest.raises(BadPayload):
            check_fit(spec, block, position=position)


@pytest.mark.parametrize("architecture", [GEMMA3, GPT_OSS], ids=lambda a: a.name)
def test_a_checkpoint_of_another_position_does_not_fit(architecture: Architecture) -> None:
    spec, checkpoint = checkpoint_of(architecture, BLOCK + 1)
    check_fit(spec, checkpoint, position=BLOCK + 1)
    for position in (1, BLOCK, HELD):
        with pytest.raises(BadPayload):
            check_fit(spec, checkpoint, position=position)


def _broken(good: dict[str, mx.array], name: str) -> list[dict[str, mx.array]]:
    """Return what a block must not be: one tensor is wrong, missing or superfluous."""
    tensor = good[name]
    return [
        good | {name: tensor.astype(mx.bfloat16)},
        good | {name: tensor[:, 1:]},
        good | {name: mx.concatenate([tensor, tensor], axis=-1)},
        good | {"9.k": tensor},
        good | {"0.x": tensor},
        {each: kept for each, kept in good.items() if each != name},
        {},
    ]


@every_architecture
def test_a_block_of_another_model_does_not_fit(architecture: Architecture) -> None:
    spec, caches = caches_of(architecture)
    good = dict(caches.read(0, BLOCK).tensors)
    for name in [name for name, tensor in good.items() if tensor.size]:
        for tensors in _broken(good, name):
            with pytest.raises(BadPayload):
                check_fit(spec, BlockArrays(BLOCK, MappingProxyType(tensors)))
    if good:
        with pytest.raises(BadPayload):
            check_fit(spec, BlockArrays(BLOCK - 1, MappingProxyType(good)))


@every_architecture
def test_a_checkpoint_of_another_model_does_not_fit(architecture: Architecture) -> None:
    spec, checkpoint = checkpoint_of(architecture, HELD)
    good = dict(checkpoint.tensors)
    for index, layer in enumerate(spec.layers):
        name = f"{index}.{'s0' if layer.kind is LayerKind.STATE else 'k'}"
        for tensors in _broken(good, name):
            with pytest.raises(BadPayload):
                check_fit(spec, BlockArrays(checkpoint.tokens, tensors), position=HELD)


def test_a_stored_block_is_copied_tensor_by_tensor() -> None:
    _, checkpoint = checkpoint_of(GEMMA3, HELD)
    payload = to_raw(checkpoint)
    before = mx.get_active_memory()
    block = from_raw(payload, checkpoint.tokens)
    assert mx.get_active_memory() == before
    for name, tensor in block.tensors.items():
        mx.eval(tensor)
        assert tensor.nbytes == checkpoint.tensors[name].nbytes
    del tensor
    assert mx.get_active_memory() == before
