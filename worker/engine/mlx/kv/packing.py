"""Keys and values of parked contexts in 8 bits: the setting ``cache.storage = "int8"``.

The scheme is that of ``BlockCodec``. A packed tensor returns the dequantised values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

from domain.kv.spec import LayerKind, ModelCacheSpec
from worker.cachestore.tier import Storage
from worker.engine.mlx.kv.arrays import TOKEN_AXIS, key_name, value_name
from worker.engine.mlx.kv.codec import BITS, FLOATS, quantised_groups

#: Part of the fingerprint of blocks, which are computed from contexts that may have been packed.
_FORM = "ram-int8-1"
#: Bytes of a tensor that are quantised at once; their float32 copy takes up to twice as much.
_AT_ONCE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Keys or values of one layer.

    Attributes:
        parts: Packed values, scales and biases; their third axis is that of the tokens.
        group: Elements that share a scale and a bias.
    """

    parts: tuple[mx.array, mx.array, mx.array]
    group: int
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        """Size of the parts in bytes."""
        return sum(part.nbytes for part in self.parts)

    def unpacked(self, first: int, last: int) -> mx.array:
        """Return the tokens from ``first`` to ``last``, dequantised and not evaluated."""
        packed, scales, biases = (part[:, :, first:last] for part in self.parts)
        exact = mx.dequantize(packed, scales, biases, group_size=self.group, bits=BITS)
        return exact.astype(self.dtype)

    def cut(self, first: int, last: int) -> PackedTensor:
        """Return a copy of the tokens from ``first`` to ``last``."""
        packed, scales, biases = (mx.contiguous(part[:, :, first:last]) for part in self.parts)
        mx.eval(packed, scales, biases)
        return PackedTensor((packed, scales, biases), self.group, self.dtype)


def packed(tensor: mx.array, group: int) -> PackedTensor:
    """Return [1, kv_heads, tokens, head_dim] in 8 bits, evaluated."""
    tokens = tensor.shape[TOKEN_AXIS]
    step = max(1, _AT_ONCE_BYTES // max(1, tensor.nbytes // max(1, tokens)))
    pieces: list[tuple[mx.array, ...]] = []
    for first in range(0, tokens, step):
        exact = tensor[:, :, first : first + step].astype(mx.float32)
        pieces.append(tuple(mx.quantize(exact, group_size=group, bits=BITS)))
        mx.eval(pieces[-1])
    values, scales, biases = (
        mx.concatenate(list(part), axis=TOKEN_AXIS) for part in zip(*pieces, strict=True)
    )
    mx.eval(values, scales, biases)
    return PackedTensor((values, scales, biases), group, tensor.dtype)


class Packing:
    """The layers of a model that can be packed.

    Args:
        spec: Layers and dtype of the model's caches.
        storage: Whether contexts are packed at all.
    """

    def __init__(self, spec: ModelCacheSpec, storage: Storage) -> None:
        groups = dict(quantised_groups(spec)) if storage is Storage.INT8 else {}
        #: Group sizes of keys and values, by full-attention layer.
        self.groups: Mapping[int, tuple[int, int]] = {
            index: (groups[key_name(index)], groups[value_name(index)])
            for index, layer in enumerate(spec.layers)
            if layer.kind is LayerKind.FULL
            and {key_name(index), value_name(index)} <= groups.keys()
            and spec.dtype in FLOATS
        }

    def __bool__(self) -> bool:
        """Whether any layer can be packed."""
        return bool(self.groups)

    def kv_dtype(self, exact: str) -> str:
        """Return the element format in the block fingerprint."""
        return f"{exact}:{_FORM}" if self else exact
