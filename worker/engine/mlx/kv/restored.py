"""mlx-lm's full-attention caches without the copies that a restored sequence does not need.

To join a batch, mlx-lm copies a ``KVCache`` into a new zero-filled buffer, indexes that buffer by
row when the sequence leaves prefill, and concatenates the result with room for the next token.
That is four copies of the whole context on top of the one that ``gather`` makes. A sequence that
is alone in its batch keeps its buffer instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache


class RestoredKVCache(KVCache):  # type: ignore[misc]  # mlx-lm ships no types
    """A ``KVCache`` that owns its keys and values, in buffers with room for more tokens."""

    @classmethod
    def merge(cls, caches: Sequence[Any]) -> Any:  # noqa: ANN401 - as its base
        """Return the cache of a batch; a batch of one is not copied."""
        if len(caches) > 1:
            return BatchKVCache.merge(caches)
        keys, values, tokens = caches[0].state
        batch = RestoredBatchKVCache([0])
        batch.state = (keys, values, mx.array([tokens]), mx.array([0]), tokens)
        return batch


class RestoredBatchKVCache(BatchKVCache):  # type: ignore[misc]  # as above
    """A ``BatchKVCache`` that is not copied when its only row is kept."""

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keep the given rows."""
        # A single row has no left padding to remove.
        if list(batch_indices) != [0] or self.left_padding.size > 1:
            super().filter(batch_indices)
