"""The kinds of mlx-lm cache we can cut into blocks, and how one sequence lies in each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import (
    ArraysCache,
    BatchKVCache,
    BatchRotatingKVCache,
    CacheList,
    KVCache,
    RotatingKVCache,
)

from worker.engine.mlx.kv.restored import RestoredBatchKVCache, RestoredKVCache

# Exact classes: a subclass may store something else under the same names.
SLIDING_CLASSES = (RotatingKVCache, BatchRotatingKVCache)
STATE_CLASSES = (ArraysCache,)


class UnsupportedCache(Exception):
    """A model keeps its context in a way we cannot cut and restore; it runs without reuse."""


@dataclass(frozen=True, slots=True)
class HeldTokens:
    """Keys and values of one sequence inside a cache's buffers.

    Attributes:
        keys: The whole buffer.
        values: The whole buffer.
        row: The sequence's row in them.
        stop: Tokens the sequence has had.
        length: How many of the last of those are held.
        origin: Where in the token axis the oldest held one lies.
        ring: Size of the buffer if it has wrapped around, or 0.
    """

    keys: mx.array
    values: mx.array
    row: int
    stop: int
    length: int
    origin: int
    ring: int

    def holds(self, start: int) -> bool:
        """Tell whether the tokens from ``start`` on are still there."""
        return start >= self.stop - self.length

    def read(self, start: int, stop: int) -> tuple[mx.array, mx.array]:
        """Return keys and values of the tokens ``start`` to ``stop`` in order, not yet computed."""
        assert self.holds(start), "the window has moved past the start"
        assert start < stop <= self.stop, "no such tokens"
        first = self.origin + start - (self.stop - self.length)
        count = stop - start
        if self.ring:
            first %= self.ring
        return self._read(self.keys, first, count), self._read(self.values, first, count)

    def _read(self, buffer: mx.array, first: int, count: int) -> mx.array:
        rows = slice(self.row, self.row + 1)
        over = first + count - self.ring if self.ring else 0
        if over <= 0:
            return buffer[rows, :, first : first + count]
        return mx.concatenate([buffer[rows, :, first:], buffer[rows, :, :over]], axis=2)


def leaves(caches: Iterable[Any]) -> list[Any]:
    """Return the caches with nested lists opened, in an order that depends on the model alone."""
    found: list[Any] = []
    for cache in caches:
        if type(cache) is CacheList:
            found += leaves(cache.caches)
        else:
            found.append(cache)
    return found


def held_tokens(found: Sequence[Any], row: int, tokens: int) -> list[HeldTokens | None]:
    """Return where a sequence lies in each of ``leaves(...)``, and ``None`` for states.

    Args:
        found: Caches of one sequence (then ``row`` is 0), or of a batch.
        row: The sequence's row.
        tokens: Tokens of the sequence that the caches have seen.

    Raises:
        UnsupportedCache: Naming the class.
    """
    paddings = [leaf.left_padding for leaf in found if type(leaf) in _PADDED]
    # All at once: reading them one by one would wait for the device as often.
    mx.eval(paddings)
    return [_held(leaf, row, tokens) for leaf in found]


def _held(leaf: Any, row: int, tokens: int) -> HeldTokens | None:  # noqa: ANN401 - mlx-lm ships no types
    if type(leaf) in STATE_CLASSES:
        return None
    read = _READERS.get(type(leaf))
    if read is None:
        raise UnsupportedCache(f"the cache class {type(leaf).__name__} is not known")
    held = read(leaf, row, tokens)
    assert held.stop == tokens, "the caches do not hold the tokens that the caller says"
    return held


def _of_full(leaf: Any, row: int, _tokens: int) -> HeldTokens:  # noqa: ANN401 - as above
    keys, values, offset = leaf.state
    return HeldTokens(keys, values, row, offset, offset, 0, 0)


def _of_full_batch(leaf: Any, row: int, _tokens: int) -> HeldTokens:  # noqa: ANN401 - as above
    keys, values, _, left_padding, index = leaf.state
    padding = left_padding.tolist()[row]
    length = index - padding
    return HeldTokens(keys, values, row, length, length, padding, 0)


def _of_sliding(leaf: Any, row: int, _tokens: int) -> HeldTokens:  # noqa: ANN401 - as above
    keys, values, offset, _, _, index = leaf.state
    size = keys.shape[2]
    if index < size and index < offset:
        return HeldTokens(keys, values, row, offset, size, index, size)
    return HeldTokens(keys, values, row, offset, index, 0, 0)


def _of_sliding_batch(leaf: Any, row: int, tokens: int) -> HeldTokens:  # noqa: ANN401 - as above
    keys, values, _, left_padding, window, _, index, rotated = leaf.state
    # Negative once the window has moved past the padding.
    padding = max(0, left_padding.tolist()[row])
    if rotated:
        return HeldTokens(keys, values, row, tokens, window - padding, index + padding, window)
    return HeldTokens(keys, values, row, tokens, index - padding, padding, 0)


_PADDED = (BatchKVCache, RestoredBatchKVCache, BatchRotatingKVCache)
_READERS = {
    KVCache: _of_full,
    RestoredKVCache: _of_full,
    BatchKVCache: _of_full_batch,
    RestoredBatchKVCache: _of_full_batch,
    RotatingKVCache: _of_sliding,
    BatchRotatingKVCache: _of_sliding_batch,
}
