"""Cut a block out of the caches of a sequence."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType
from typing import Any

import mlx.core as mx

from worker.engine.mlx.kv.arrays import BlockArrays, key_name, state_name, value_name
from worker.engine.mlx.kv.leaves import SLIDING_CLASSES, held_tokens, leaves


def extract(
    caches: Iterable[Any], start: int, stop: int, *, held: int, row: int = 0
) -> BlockArrays | None:
    """Copy what every layer remembers of the tokens ``start`` to ``stop``.

    Only these tokens are read and copied, whatever the length of the context; the copies keep
    nothing of the caches alive, so the next step can write into their buffers in place.

    A full layer gives its block at any later time. A sliding layer gives it as long as its window
    has not moved past the block's last ``min(window, stop - start)`` tokens. A layer with a state
    gives it only at the moment when ``stop == held``. So models with such layers need a look at
    every boundary.

    Args:
        caches: Per-layer caches of one sequence, or of the batch that it runs in.
        start: First token of the run.
        stop: End of the run.
        held: Tokens of this sequence that the caches hold.
        row: The sequence's row in the batch.

    Returns:
        The block, or ``None`` when a layer no longer holds its part of it.

    Raises:
        UnsupportedCache: Naming a cache class that is not known.
    """
    assert 0 <= start < stop <= held, "no such tokens"
    found = leaves(caches)
    places = held_tokens(found, row, held)
    tensors: dict[str, mx.array] = {}
    for layer, (leaf, place) in enumerate(zip(found, places, strict=True)):
        if place is None:
            if stop != held:
                return None
            for index, state in enumerate(leaf.cache):
                tensors[state_name(layer, index)] = state[row : row + 1]
            continue
        first = max(start, stop - leaf.max_size) if type(leaf) in SLIDING_CLASSES else start
        if not place.holds(first):
            return None
        tensors[key_name(layer)], tensors[value_name(layer)] = place.read(first, stop)
    return BlockArrays(stop - start, MappingProxyType(_owned(tensors)))


def _owned(tensors: dict[str, mx.array]) -> dict[str, mx.array]:
    """Compute the slices into memory of their own."""
    copies = {name: mx.contiguous(tensor) for name, tensor in tensors.items()}
    mx.eval(copies)
    return copies
