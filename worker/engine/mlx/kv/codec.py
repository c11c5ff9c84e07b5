"""Encodes a block for the disk: unchanged, or with keys and values quantised to 8 bits.

A block that was read back holds the dequantised values.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

import mlx.core as mx

from domain.kv.spec import ModelCacheSpec
from ops.blockstore.blocks import BlockPayload
from worker.cachestore.tier import Storage
from worker.engine.mlx.kv.arrays import BlockArrays, key_name, value_name
from worker.engine.mlx.kv.raw import BadPayload, check_fit, from_raw, to_raw

#: Elements of one head that share a scale and a bias; the largest size that divides head_dim is
#: used. ``mx.quantize`` has kernels for these sizes; 128 would save 3 % more bytes and lose more
#: precision.
GROUP_SIZES = (64, 32)
BITS = 8
#: Part of the fingerprint of quantised blocks. Change it with any change of their format.
_FORM = "int8-1"
#: Values in one uint32 element of the packed tensor.
_PACKED = 32 // BITS
#: Types of keys and values that can be quantised.
FLOATS = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


class BlockCodec:
    """Encodes blocks of one model to bytes and decodes them. Belongs to the engine thread.

    Quantisation is the affine scheme of ``mx.quantize``: each group of elements becomes
    ``q * scale + bias``. A tensor ``3.k`` of the shape [1, kv_heads, tokens, head_dim] is written
    as ``3.k.q`` (uint32, four values each: [..., head_dim / 4]), and ``3.k.s`` and ``3.k.b``
    (float32: [..., head_dim / group]). Scales are float32 because float16 scales raise the error
    by half. Recurrent states and heads whose length no group size divides are written unchanged.

    Args:
        spec: Layers and dtype of the model's caches.
        storage: Whether keys and values are quantised.
    """

    def __init__(self, spec: ModelCacheSpec, storage: Storage = Storage.EXACT) -> None:
        self._spec = spec
        quantises = storage is Storage.INT8 and spec.dtype in FLOATS
        self._groups = dict(quantised_groups(spec)) if quantises else {}

    @property
    def lossy(self) -> bool:
        """Whether ``decode(encode(block))`` may differ from the block."""
        return bool(self._groups)

    @property
    def kv_dtype(self) -> str:
        """The stored element format, a part of the block fingerprint."""
        return f"{self._spec.dtype}:{_FORM}" if self.lossy else self._spec.dtype

    def encode(self, block: BlockArrays) -> BlockPayload:
        """Return the payload of a block; see ``to_raw``."""
        if not self.lossy:
            return to_raw(block)
        tensors = dict(block.tensors)
        for name, group in self._groups.items():
            if name not in tensors:
                continue
            exact = tensors.pop(name).astype(mx.float32)
            parts = mx.quantize(exact, group_size=group, bits=BITS)
            tensors |= zip(_part_names(name), parts, strict=True)
        return to_raw(BlockArrays(block.tokens, tensors))

    def decode(
        self, payload: BlockPayload, tokens: int, *, position: int | None = None
    ) -> BlockArrays:
        """Return the block or checkpoint that a payload encodes, in the model's KV dtype.

        Quantised tensors are dequantised at once, others are copied when they are looked up.

        Args:
            payload: A payload of ``encode``, possibly read from the disk.
            tokens: Number of tokens that its name covers.
            position: Tokens before a checkpoint; ``None`` for a block.

        Raises:
            BadPayload: The payload is not a block of this model, or has another storage format.
        """
        block = from_raw(payload, tokens)
        if self.lossy:
            tensors = dict(block.tensors)
            for name, group in self._groups.items():
                if not any(part in tensors for part in (name, *_part_names(name))):
                    continue
                packed, scales, biases = self._parts(tensors, name, group)
                exact = mx.dequantize(packed, scales, biases, group_size=group, bits=BITS)
                tensors[name] = exact.astype(FLOATS[self._spec.dtype])
            block = BlockArrays(tokens, MappingProxyType(tensors))
            mx.eval(tensors)
        check_fit(self._spec, block, position=position)
        return block

    def _parts(self, tensors: dict[str, mx.array], name: str, group: int) -> list[mx.array]:
        """Remove and return the packed values, scales and biases of one tensor.

        Checks that the three parts fit each other. ``check_fit`` checks the shape of the result.
        """
        if name in tensors:
            raise BadPayload(f"{name} is there unquantised")
        found = []
        for part in _part_names(name):
            if part not in tensors:
                raise BadPayload(f"{part} is missing")
            found.append(tensors.pop(part))
        packed, scales, biases = found
        if (packed.dtype, scales.dtype, biases.dtype) != (mx.uint32, mx.float32, mx.float32):
            raise BadPayload(f"the parts of {name} have the wrong types")
        whole = (*packed.shape[:-1], packed.shape[-1] * _PACKED // group) if packed.ndim else ()
        if not packed.size or packed.shape[-1] * _PACKED % group:
            raise BadPayload(f"{name} has no whole groups")
        if not scales.shape == biases.shape == whole:
            raise BadPayload(f"the parts of {name} have the shapes of different tensors")
        return found


def quantised_groups(spec: ModelCacheSpec) -> Iterator[tuple[str, int]]:
    """Yield the names of the tensors that can be quantised, each with its group size."""
    for index, layer in enumerate(spec.layers):
        for name, dim in ((key_name(index), layer.key_dim), (value_name(index), layer.value_dim)):
            group = next((size for size in GROUP_SIZES if dim and dim % size == 0), None)
            if group is not None:
                yield name, group


def _part_names(name: str) -> tuple[str, str, str]:
    return f"{name}.q", f"{name}.s", f"{name}.b"
