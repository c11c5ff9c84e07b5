"""Blocks that lie on disk in eight bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mlx.core as mx
import pytest

from domain.kv.hashing import pack_ids
from domain.kv.spec import LayerKind, LayerSpec, ModelCacheSpec
from ops.blockstore.blocks import (
    BlockPayload,
    BlockRejected,
    NewBlock,
    RawTensor,
    RejectReason,
    StoredBlock,
)
from tests.support.models.disk_bench import DiskBench
from tests.support.models.kv_sequences import block_difference, random_tokens
from tests.support.models.runner_probe import BLOCK
from tests.support.models.tiny_architectures import FALCON_H1_WIDE, LLAMA, Architecture
from worker.cachestore.tier import Storage
from worker.engine.mlx.kv.codec import BadPayload, BlockArrays, BlockCodec, to_raw

TOKENS = 16
PROMPT = random_tokens(5 * BLOCK + 5, 21)


def _layer(key_dim: int, value_dim: int, window: int = 0, bytes_each: int = 4) -> LayerSpec:
    return LayerSpec(
        kind=LayerKind.SLIDING if window else LayerKind.FULL,
        kv_heads=2,
        key_dim=key_dim,
        value_dim=value_dim,
        element_bytes=bytes_each,
        window=window,
    )


#: Groups of 64, of 32 behind a window, a state, and a head that no group divides.
LAYERS = (
    _layer(128, 64),
    _layer(96, 32, window=9),
    LayerSpec(kind=LayerKind.STATE, state_bytes=80),
    _layer(64, 8),
)
SPEC = ModelCacheSpec(layers=LAYERS, dtype="float32", block_tokens=TOKENS)
QUANTISED = {"0.k", "0.v", "1.k", "1.v", "3.k"}


def _block(spec: ModelCacheSpec = SPEC, tokens: int = TOKENS, scale: float = 3.0) -> BlockArrays:
    dtype = getattr(mx, spec.dtype)
    mx.random.seed(tokens)
    tensors = {}
    for index, layer in enumerate(spec.layers):
        if layer.kind is LayerKind.STATE:
            tensors[f"{index}.s0"] = mx.random.normal((1, layer.state_bytes // 4))
            continue
        shape = (1, layer.kv_heads, layer.kept_tokens(tokens))
        for part, dim in (("k", layer.key_dim), ("v", layer.value_dim)):
            noise = mx.random.normal((*shape, dim)) * scale + 1
            tensors[f"{index}.{part}"] = noise.astype(dtype)
    mx.eval(tensors)
    return BlockArrays(tokens, tensors)


def _spec(dtype: str) -> ModelCacheSpec:
    size = 4 if dtype == "float32" else 2
    return ModelCacheSpec(
        layers=(_layer(128, 64, bytes_each=size),), dtype=dtype, block_tokens=TOKENS
    )


def _steps(exact: mx.array, read: mx.array, group: int) -> float:
    """Return the largest error in steps of its group, a step being a 255th of the group's range."""
    groups = exact.astype(mx.float32).reshape(-1, group)
    step = (groups.max(axis=1) - groups.min(axis=1)) / 255
    error = mx.abs(groups - read.astype(mx.float32).reshape(-1, group)).max(axis=1)
    return float((error / step).max())


@pytest.mark.parametrize("tokens", [TOKENS, 1, 5], ids=["a block", "one token", "a tail"])
def test_keys_and_values_come_back_within_a_step_and_the_rest_exactly(tokens: int) -> None:
    codec = BlockCodec(SPEC, Storage.INT8)
    block = _block(tokens=tokens)
    if tokens == TOKENS:
        # A checkpoint at a block boundary leaves the full-attention layers to the block.
        full = {"0.k", "0.v", "3.k", "3.v"}
        ends = {name: one for name, one in block.tensors.items() if name not in full}
        block = BlockArrays(tokens, ends)
    read = codec.decode(codec.encode(block), tokens, position=tokens)
    assert read.tensors.keys() == block.tensors.keys()
    for name, exact in block.tensors.items():
        if name in QUANTISED:
            group = 64 if name in {"0.k", "0.v", "3.k"} else 32
            assert 0 < _steps(exact, read.tensors[name], group) <= 1.0
        else:
            assert bool(mx.array_equal(exact, read.tensors[name]))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_adds_no_more_than_its_own_rounding(dtype: str) -> None:
    spec = _spec(dtype)
    codec = BlockCodec(spec, Storage.INT8)
    block = _block(spec)
    read = codec.decode(codec.encode(block), TOKENS)
    for name, exact in block.tensors.items():
        assert read.tensors[name].dtype == exact.dtype
        assert _steps(exact, read.tensors[name], 64) <= 1.5


def test_keys_that_are_all_alike_come_back_exactly() -> None:
    spec = _spec("float32")
    block = _block(spec, scale=0.0)
    codec = BlockCodec(spec, Storage.INT8)
    assert block_difference(block, codec.decode(codec.encode(block), TOKENS)) == 0


def test_block_takes_9_of_16_bytes_in_half_precision() -> None:
    spec = _spec("bfloat16")
    block = _block(spec)
    payload = BlockCodec(spec, Storage.INT8).encode(block)
    assert sum(raw.nbytes for raw in payload.values()) * 16 == block.nbytes * 9


def test_fingerprint_differs_only_where_something_is_quantised() -> None:
    exact, int8 = BlockCodec(SPEC), BlockCodec(SPEC, Storage.INT8)
    assert exact.kv_dtype == "float32" != int8.kv_dtype
    short = ModelCacheSpec(layers=(_layer(8, 16),), dtype="float32", block_tokens=TOKENS)
    assert BlockCodec(short, Storage.INT8).kv_dtype == "float32"
    block = _block(short)
    assert BlockCodec(short, Storage.INT8).encode(block).keys() == to_raw(block).keys()


def _changed(payload: BlockPayload, **changes: RawTensor | None) -> BlockPayload:
    found: Mapping[str, RawTensor | None] = {**payload, **changes}
    return {name: raw for name, raw in found.items() if raw is not None}


def test_headers_that_lie_about_quantised_tensors_are_refused() -> None:
    spec = _spec("float32")
    block = _block(spec)
    codec = BlockCodec(spec, Storage.INT8)
    good = codec.encode(block)
    assert set(good) == {f"0.{part}.{end}" for part in "kv" for end in "qsb"}
    exact = to_raw(block)["0.k"]
    packed, scales = good["0.k.q"], good["0.k.s"]
    data = bytes(packed.joined())

    def as_shape(*shape: int, dtype: str = "U32") -> RawTensor:
        return RawTensor(dtype, shape, data)

    zero = RawTensor("U32", (1, 1, 2, TOKENS, 0), b"")
    lies: list[dict[str, RawTensor | None]] = [
        {"0.k.s": None},
        {"0.k.q": None},
        {"0.k.q": None, "0.k.s": None, "0.k.b": None, "0.k": exact},
        {"0.k": exact},
        {"0.k.q": as_shape(1, 1, 2, TOKENS, 32, dtype="I32")},
        {"0.k.s": RawTensor("I32", scales.shape, bytes(scales.joined()))},
        {"0.k.q": as_shape(1, 1, 2, TOKENS * 2, 16)},
        {"0.k.q": as_shape(1, 1, 4, TOKENS, 16)},
        {"0.k.q": as_shape(1, 2 * TOKENS * 32)},
        {"0.k.q": as_shape(1, 1, 2, TOKENS * 32, 1)},
        {"0.k.q": zero},
        {"0.k.q": zero, "0.k.s": RawTensor("F32", (1, 1, 2, TOKENS, 0), b"")},
        {"0.k.s": good["0.v.s"], "0.k.b": good["0.v.b"]},
        {"0.k.q": good["0.v.q"], "0.k.s": good["0.v.s"], "0.k.b": good["0.v.b"]},
        {"0.k.z": scales},
        {"7.k.q": good["0.k.q"]},
    ]
    for lie in lies:
        with pytest.raises(BadPayload):
            codec.decode(_changed(good, **lie), TOKENS)
    with pytest.raises(BadPayload):
        codec.decode(good, TOKENS - 1)
    for one, other in ((codec, BlockCodec(spec)), (BlockCodec(spec), codec)):
        with pytest.raises(BadPayload):
            other.decode(one.encode(block), TOKENS)


MakeBench = Callable[..., DiskBench]


@pytest.fixture
def process(process: Callable[..., DiskBench]) -> MakeBench:
    """Return what starts a process that stores blocks in eight bits by default."""

    def start(
        storage: Storage = Storage.INT8, architecture: Architecture = FALCON_H1_WIDE, **more: Any
    ) -> DiskBench:
        return process(architecture, storage=storage, **more)

    return start


def _held(bench: DiskBench) -> dict[str, mx.array]:
    """Return the keys and values of the prompt's whole blocks."""
    (context,) = bench.reuse.pool.contexts()
    stop = len(PROMPT) - len(PROMPT) % BLOCK
    return dict(bench.reuse.store.caches(context).read(0, stop).tensors)


def test_restart_restores_every_token_from_blocks_in_eight_bits(process: MakeBench) -> None:
    first = process()
    said = first.run_alone(PROMPT, 8).tokens
    assert first.run_alone(PROMPT, 8).tokens == said, "in memory nothing is quantised"
    exact = _held(first)
    second = process()
    assert second.model.cached_prefix(tuple(PROMPT)).source == "disk"
    run = second.run_alone(PROMPT, 8)
    assert (len(run.tokens), run.cached, second.computed) == (8, len(PROMPT) - 1, 0)
    assert not second.events
    read = _held(second)
    assert read.keys() == exact.keys()
    for name, tensor in exact.items():
        assert 0 < _steps(tensor, read[name], 64) <= 1.0


def test_the_other_mode_is_a_miss_and_both_kinds_live_side_by_side(process: MakeBench) -> None:
    expected = process().run_alone(PROMPT, 8).tokens
    exact = process(Storage.EXACT)
    run = exact.run_alone(PROMPT, 8)
    assert (run.tokens, run.cached) == (expected, 0)
    assert not exact.events
    assert process(Storage.INT8).run_alone(PROMPT, 8).cached == len(PROMPT) - 1
    again = process(Storage.EXACT).run_alone(PROMPT, 8)
    assert (again.tokens, again.cached) == (expected, len(PROMPT) - 1)


def test_model_of_short_heads_keeps_its_exact_blocks_whatever_is_set(process: MakeBench) -> None:
    expected = process(Storage.EXACT, LLAMA).run_alone(PROMPT, 8).tokens
    run = process(Storage.INT8, LLAMA).run_alone(PROMPT, 8)
    assert (run.tokens, run.cached) == (expected, len(PROMPT) - 1)


def test_file_that_lies_about_quantised_tensors_is_rejected_and_computed_again(
    process: MakeBench,
) -> None:
    first = process()
    expected = first.run_alone(PROMPT, 8).tokens
    names, fingerprint = (
        list(first.reuse.pool.hasher.chain(pack_ids(PROMPT), BLOCK)),
        first.reuse.fingerprint,
    )
    first.close()
    stored = first.store.get(names[1], fingerprint)
    assert isinstance(stored, StoredBlock)
    payload = dict(stored.payload)
    scales = next(name for name in payload if name.endswith(".k.s"))
    payload[scales.replace(".s", ".b")] = RawTensor("F32", (1,), bytes(4))
    assert first.store.delete(names[1])
    first.store.put_many(
        [
            NewBlock(
                hash=names[1],
                parent=names[0],
                fingerprint=fingerprint,
                token_ids=stored.token_ids,
                payload=payload,
            )
        ]
    )[0]
    second = process()
    run = second.run_alone(PROMPT, 8)
    assert run.cached == 0  # no checkpoint after the block can be used
    assert len(run.tokens) == len(expected)
    (rejected,) = [event for event in second.events if isinstance(event, BlockRejected)]
    assert (rejected.hash, rejected.reason) == (names[1], RejectReason.FOREIGN)
