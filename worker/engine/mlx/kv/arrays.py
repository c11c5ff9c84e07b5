"""A KV block as MLX arrays, and the names of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

#: Axis of the tokens in keys and values of the shape [1, kv_heads, tokens, head_dim].
TOKEN_AXIS = 2


@dataclass(frozen=True, slots=True)
class BlockArrays:
    """What every layer stores for one run of tokens.

    Attributes:
        tokens: Length of the run: ``spec.block_tokens``, or fewer in a tail block.
        tensors: Tensors by name. ``3.k`` and ``3.v`` are keys and values of attention layer 3,
            of the shape [1, kv_heads, kept_tokens, head_dim] and the model's KV dtype.
            ``4.s0``, ``4.s1`` … are the arrays of a layer with a recurrent state, after the last
            token of the run. Layers are numbered as in the model's ``ModelCacheSpec``. A
            full-attention layer keeps all tokens of the run, a sliding-window layer the last
            ones that fit its window. No cache and no other block shares this memory.
    """

    tokens: int
    tensors: Mapping[str, mx.array]

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def key_name(layer: int) -> str:
    """Return the tensor name of an attention layer's keys."""
    return f"{layer}.k"


def value_name(layer: int) -> str:
    """Return the tensor name of an attention layer's values."""
    return f"{layer}.v"


def state_name(layer: int, index: int) -> str:
    """Return the tensor name of one array of a layer's recurrent state."""
    return f"{layer}.s{index}"
