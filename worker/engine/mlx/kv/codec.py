"""How a block is written: as it is, or with its keys and values in eight bits.

Only the disk sees the difference. A block in memory is what was computed, or what was read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

import mlx.core as mx

from domain.kv.spec import ModelCacheSpec
from ops.blockstore.payload import BlockPayload
from worker.cachestore.tier import Storage
from worker.engine.mlx.kv.arrays import BlockArrays, key_name, value_name
from worker.engine.mlx.kv.raw import BadPayload, check_fit, from_raw, to_raw

#: Elements of a head that share a scale, the largest that divides the head's length. MLX has
#: kernels for these; 128 would save 3 % more and err more.
GROUP_SIZES = (64, 32)
BITS = 8
#: Part of the fingerprint of quantised blocks; to be changed with anything that changes their form.
_FORM = "int8-1"
#: Elements of the packed tensor hold so many values.
_PACKED = 32 // BITS
_FLOATS = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}


class BlockCodec:
    """Turns blocks of one model to bytes and back. Belongs to the engine thread.

    In eight bits each group of a key or value becomes ``q * scale + bias``. A tensor ``3.k`` is
    written as ``3.k.q`` (four values in each U32), ``3.k.s`` and ``3.k.b``. Scales are F32: in
    half precision their rounding adds half as much error again. States stay as they are, and so do
    heads whose length no group divides.

    Args:
        spec: What a block holds.
        storage: How it is written.
    """

    def __init__(self, spec: ModelCacheSpec, storage: Storage = Storage.EXACT) -> None:
        self._spec = spec
        quantises = storage is Storage.INT8 and spec.dtype in _FLOATS
        self._groups = dict(_groups(spec)) if quantises else {}

    @property
    def lossy(self) -> bool:
        """Whether anything is changed by being written and read."""
        return bool(self._groups)

    @property
    def kv_dtype(self) -> str:
        """How elements are kept, for the fingerprint: blocks of two kinds never meet."""
        return f"{self._spec.dtype}:{_FORM}" if self.lossy else self._spec.dtype

    def encode(self, block: BlockArrays) -> BlockPayload:
        """Return the bytes of a block; see ``to_raw``."""
        if not self.lossy:
            return to_raw(block)
        tensors = dict(block.tensors)
        for name, group in self._groups.items():
            exact = tensors.pop(name).astype(mx.float32)
            parts = mx.quantize(exact, group_size=group, bits=BITS)
            tensors |= zip(_part_names(name), parts, strict=True)
        return to_raw(BlockArrays(block.tokens, tensors))

    def decode(self, payload: BlockPayload, tokens: int) -> BlockArrays:
        """Return a block of this model from its bytes.

        Args:
            payload: From ``encode``, with any way between.
            tokens: Length of the run of tokens.

        Raises:
            BadPayload: It is not a block of this model, or was written in another way.
        """
        block = from_raw(payload, tokens)
        if self.lossy:
            tensors = dict(block.tensors)
            for name, group in self._groups.items():
                packed, scales, biases = self._parts(tensors, name, group)
                exact = mx.dequantize(packed, scales, biases, group_size=group, bits=BITS)
                tensors[name] = exact.astype(_FLOATS[self._spec.dtype])
            block = BlockArrays(tokens, MappingProxyType(tensors))
        check_fit(self._spec, block)
        mx.eval(block.tensors)
        return block

    def _parts(self, tensors: dict[str, mx.array], name: str, group: int) -> list[mx.array]:
        """Take the three parts of a tensor out, if they are parts of one.

        The shape of the whole is left to ``check_fit``.
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


def _groups(spec: ModelCacheSpec) -> Iterator[tuple[str, int]]:
    """Yield the names of the tensors that can be quantised, and their sizes of groups."""
    for index, layer in enumerate(spec.layers):
        for name, dim in ((key_name(index), layer.key_dim), (value_name(index), layer.value_dim)):
            group = next((size for size in GROUP_SIZES if dim and dim % size == 0), None)
            if group is not None:
                yield name, group


def _part_names(name: str) -> tuple[str, str, str]:
    return f"{name}.q", f"{name}.s", f"{name}.b"
