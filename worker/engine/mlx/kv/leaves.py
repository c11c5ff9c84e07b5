"""The mlx-lm cache classes that can be cut into blocks, and where each stores one sequence.

The layouts are those of ``mlx_lm.models.cache``: the ``state`` property of each class.
"""

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

# Compared by exact class, because a subclass may store other data in the same attributes.
SLIDING_CLASSES = (RotatingKVCache, BatchRotatingKVCache)
STATE_CLASSES = (ArraysCache,)


class UnsupportedCache(Exception):
    """A model's caches cannot be cut into blocks and restored; it runs without a prefix cache."""


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """Where a cache's buffers store the keys and values of one sequence.

    Attributes:
        keys: The whole buffer, of the shape [batch, kv_heads, slots, head_dim].
        values: The whole buffer, of the shape [batch, kv_heads, slots, head_dim].
        row: The sequence's row in the batch axis.
        stop: Tokens of the sequence that the cache has received.
        length: How many of the last of those the buffer still stores.
        origin: Slot of the oldest stored token.
        ring: Number of slots if the buffer has wrapped around, else 0.
    """

    keys: mx.array
    values: mx.array
    row: int
    stop: int
    length: int
    origin: int
    ring: int

    def covers(self, start: int) -> bool:
        """Return whether the buffer still stores the tokens from ``start`` on."""
        return start >= self.stop - self.length

    def read(self, start: int, stop: int) -> tuple[mx.array, mx.array]:
        """Return keys and values of the tokens ``start`` to ``stop``, in order, as lazy arrays.

        Returns:
            Two arrays of the shape [1, kv_heads, stop - start, head_dim].
        """
        assert self.covers(start), "the window has moved past the start"
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
    """Return the caches with every ``CacheList`` flattened, in the order of the model's layers."""
    found: list[Any] = []
    for cache in caches:
        if type(cache) is CacheList:
            found += leaves(cache.caches)
        else:
            found.append(cache)
    return found


def locate_sequence(found: Sequence[Any], row: int, tokens: int) -> list[SequenceSpan | None]:
    """Return where each cache of ``leaves(...)`` stores a sequence; ``None`` for state caches.

    Args:
        found: Caches of one sequence (then ``row`` is 0), or of a batch.
        row: The sequence's row.
        tokens: Tokens of the sequence that the caches have received.

    Raises:
        UnsupportedCache: A cache class is unknown; the message names it.
    """
    paddings = [leaf.left_padding for leaf in found if type(leaf) in _PADDED]
    # One evaluation for all layers, so that the device is waited for once.
    mx.eval(paddings)
    return [_locate(leaf, row, tokens) for leaf in found]


def _locate(leaf: Any, row: int, tokens: int) -> SequenceSpan | None:  # noqa: ANN401 - mlx-lm ships no types
    if type(leaf) in STATE_CLASSES:
        return None
    reader = _READERS.get(type(leaf))
    if reader is None:
        raise UnsupportedCache(f"the cache class {type(leaf).__name__} is not known")
    span = reader(leaf, row, tokens)
    assert span.stop == tokens, "the caches hold another number of tokens"
    return span


def _of_full(leaf: Any, row: int, _tokens: int) -> SequenceSpan:  # noqa: ANN401 - as above
    keys, values, offset = leaf.state
    return SequenceSpan(keys, values, row, offset, offset, 0, 0)


def _of_full_batch(leaf: Any, row: int, _tokens: int) -> SequenceSpan:  # noqa: ANN401 - as above
    keys, values, _, left_padding, index = leaf.state
    padding = left_padding.tolist()[row]
    length = index - padding
    return SequenceSpan(keys, values, row, length, length, padding, 0)


def _of_sliding(leaf: Any, row: int, _tokens: int) -> SequenceSpan:  # noqa: ANN401 - as above
    keys, values, offset, _, _, index = leaf.state
    size = keys.shape[2]
    if index < size and index < offset:
        return SequenceSpan(keys, values, row, offset, size, index, size)
    return SequenceSpan(keys, values, row, offset, index, 0, 0)


def _of_sliding_batch(leaf: Any, row: int, tokens: int) -> SequenceSpan:  # noqa: ANN401 - as above
    keys, values, _, left_padding, window, _, index, rotated = leaf.state
    # Negative once the window has moved past the padding.
    padding = max(0, left_padding.tolist()[row])
    if rotated:
        return SequenceSpan(keys, values, row, tokens, window - padding, index + padding, window)
    return SequenceSpan(keys, values, row, tokens, index - padding, padding, 0)


_PADDED = (BatchKVCache, RestoredBatchKVCache, BatchRotatingKVCache)
_READERS = {
    KVCache: _of_full,
    RestoredKVCache: _of_full,
    BatchKVCache: _of_full_batch,
    RestoredBatchKVCache: _of_full_batch,
    RotatingKVCache: _of_sliding,
    BatchRotatingKVCache: _of_sliding_batch,
}
