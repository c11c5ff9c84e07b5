"""The mlx-lm cache classes that can be cut into blocks, and where each stores one sequence.

The layouts are those of ``mlx_lm.models.cache``: the ``state`` property of each class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache, CacheList, KVCache

from worker.engine.mlx.kv.window_cache import WindowKVCache

# Compared by exact class, because a subclass may store other data in the same attributes.
SLIDING_CLASSES = (WindowKVCache,)
STATE_CLASSES = (ArraysCache,)
#: Those that can take back their last ``WINDOW_SLACK_TOKENS`` at any length.
TRIMMABLE_CLASSES = (KVCache, *SLIDING_CLASSES)


class UnsupportedCache(Exception):
    """A model's caches cannot be cut into blocks and restored; it runs without a prefix cache."""


@dataclass(frozen=True, slots=True)
class SequenceSpan:
    """Where a cache's buffers store the keys and values of one sequence.

    Attributes:
        keys: The whole buffer, of the shape [1, kv_heads, slots, head_dim].
        values: The whole buffer, of the shape [1, kv_heads, slots, head_dim].
        stop: Tokens of the sequence that the cache has received.
        length: How many of the last of those the buffer still stores, in its first slots.
    """

    keys: mx.array
    values: mx.array
    stop: int
    length: int

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
        oldest = self.stop - self.length
        first, last = start - oldest, stop - oldest
        return self.keys[:, :, first:last], self.values[:, :, first:last]


def leaves(caches: Iterable[Any]) -> list[Any]:
    """Return the caches with every ``CacheList`` flattened, in the order of the model's layers."""
    found: list[Any] = []
    for cache in caches:
        if type(cache) is CacheList:
            found += leaves(cache.caches)
        else:
            found.append(cache)
    return found


def locate_sequence(found: Sequence[Any], tokens: int) -> list[SequenceSpan | None]:
    """Return where each cache of ``leaves(...)`` stores its sequence; ``None`` for state caches.

    Args:
        found: Caches of one sequence.
        tokens: Tokens of the sequence that the caches have received.

    Raises:
        UnsupportedCache: A cache class is unknown; the message names it.
    """
    return [_locate(leaf, tokens) for leaf in found]


def _locate(leaf: Any, tokens: int) -> SequenceSpan | None:  # noqa: ANN401 - mlx-lm ships no types
    if type(leaf) in STATE_CLASSES:
        return None
    if type(leaf) is KVCache:
        keys, values, stop = leaf.state
        span = SequenceSpan(keys, values, stop, stop)
    elif type(leaf) in SLIDING_CLASSES:
        span = SequenceSpan(*leaf.state)
    else:
        raise UnsupportedCache(f"the cache class {type(leaf).__name__} is not known")
    assert span.stop == tokens, "the caches hold another number of tokens"
    return span
