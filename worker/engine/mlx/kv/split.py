"""Copy one block out of the caches of a sequence."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import mlx.core as mx

from worker.engine.mlx.kv.arrays import BlockArrays, key_name, state_name, value_name
from worker.engine.mlx.kv.leaves import SLIDING_CLASSES, leaves, locate_sequence


def extract(
    caches: Iterable[Any], start: int, stop: int, *, cached_tokens: int
) -> BlockArrays | None:
    """Copy what every layer stores for the tokens ``start`` to ``stop``.

    The cost depends on ``stop - start``, not on the length of the context. The copies keep no
    buffer of the caches alive, so the next step can write into those buffers in place.

    A full-attention layer can be copied at any later time. A sliding-window layer can be copied
    while its window still covers the block's last ``min(window, stop - start)`` tokens. A layer
    with a recurrent state can be copied only while ``stop == cached_tokens``, so models with such
    layers must be copied at every block boundary.

    Args:
        caches: Per-layer caches of the sequence.
        start: First token of the block, counted from the start of the sequence.
        stop: The token after the last one.
        cached_tokens: Tokens of this sequence that the caches hold.

    Returns:
        The block, or ``None`` when a layer no longer holds its part of it.

    Raises:
        UnsupportedCache: A cache class is unknown; the message names it.
    """
    assert 0 <= start < stop <= cached_tokens, "no such tokens"
    found = leaves(caches)
    spans = locate_sequence(found, cached_tokens)
    tensors: dict[str, mx.array] = {}
    for layer, (leaf, span) in enumerate(zip(found, spans, strict=True)):
        if span is None:
            if stop != cached_tokens:
                return None
            for index, state in enumerate(leaf.cache):
                tensors[state_name(layer, index)] = state
            continue
        first = max(start, stop - leaf.max_size) if type(leaf) in SLIDING_CLASSES else start
        if not span.covers(first):
            return None
        tensors[key_name(layer)], tensors[value_name(layer)] = span.read(first, stop)
    return BlockArrays(stop - start, MappingProxyType(_owned(tensors)))


def _owned(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Return contiguous copies of the slices, evaluated."""
    copies = {name: mx.contiguous(tensor) for name, tensor in tensors.items()}
    mx.eval(copies)
    return copies
