"""One sequence on a tiny network: prefill in pieces, cut blocks, decode, compare."""

from __future__ import annotations

import random

import mlx.core as mx

from tests.support.models.tiny_architectures import VOCABULARY
from worker.engine.mlx.kv.codec import BlockArrays


def random_tokens(count: int, seed: int) -> list[int]:
    """Return a prompt."""
    rng = random.Random(seed)
    return [rng.randrange(VOCABULARY) for _ in range(count)]


def difference(one: mx.array, other: mx.array) -> float:
    """Return the largest difference of two arrays of one shape; 0 means bit-equal."""
    assert one.shape == other.shape
    assert one.dtype == other.dtype
    if bool(mx.array_equal(one, other, equal_nan=True)):
        return 0.0
    return float(mx.abs(one.astype(mx.float32) - other.astype(mx.float32)).max()) or 1.0


def block_difference(one: BlockArrays, other: BlockArrays) -> float:
    """Return the largest difference of two blocks of one form."""
    assert one.tokens == other.tokens
    assert one.tensors.keys() == other.tensors.keys()
    return max(difference(one.tensors[name], other.tensors[name]) for name in one.tensors)
