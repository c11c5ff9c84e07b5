"""A block while it is made of MLX arrays, and what its tensors are called."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

#: Axis of the tokens in keys and values, which are (1, heads, tokens, dim).
TOKEN_AXIS = 2


@dataclass(frozen=True, slots=True)
class BlockArrays:
    """What every layer remembers of one run of tokens.

    Attributes:
        tokens: Length of the run: a whole block, or less in a tail.
        tensors: By name: ``3.k`` and ``3.v`` of attention layer 3, ``4.s0``, ``4.s1`` … of a layer
            with a state. Layers are numbered as in the model's ``ModelCacheSpec``. A full layer
            holds all the tokens, a sliding one the last of them that fit its window, and a state
            is the one after the last token. Their memory is the block's own: no cache and no
            other block shares it.
    """

    tokens: int
    tensors: Mapping[str, mx.array]

    @property
    def nbytes(self) -> int:
        """Memory the arrays hold."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def key_name(layer: int) -> str:
    """Return the name of an attention layer's keys."""
    return f"{layer}.k"


def value_name(layer: int) -> str:
    """Return the name of an attention layer's values."""
    return f"{layer}.v"


def state_name(layer: int, index: int) -> str:
    """Return the name of one array of a layer's state."""
    return f"{layer}.s{index}"
