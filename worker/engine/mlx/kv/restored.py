"""mlx-lm's caches of full attention, without the copies that a restored sequence does not need.

To join a batch, ``KVCache`` is written into a new buffer of zeros, that is indexed by row when the
sequence leaves prefill, and the result is concatenated with room for the next token: four copies of
the whole context on top of the one that ``gather`` makes. Alone in its batch, a sequence can keep
the buffer it came with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache, KVCache


class RestoredKVCache(KVCache):  # type: ignore[misc]  # mlx-lm ships no types
    """A cache with keys and values of its own, whose buffers have room to grow."""

    @classmethod
    def merge(cls, caches: Sequence[Any]) -> Any:  # noqa: ANN401 - as its base
        """Return the cache of a batch; of a batch of one without a copy."""
        if len(caches) > 1:
            return BatchKVCache.merge(caches)
        keys, values, tokens = caches[0].state
        batch = RestoredBatchKVCache([0])
        batch.state = (keys, values, mx.array([tokens]), mx.array([0]), tokens)
        return batch


class RestoredBatchKVCache(BatchKVCache):  # type: ignore[misc]  # as above
    """The cache of a batch that does not copy itself to keep its only row."""

    def filter(self, batch_indices: Sequence[int]) -> None:
        """Keep the given rows."""
        # A row that is alone has no padding that could be cut away.
        if list(batch_indices) != [0] or self.left_padding.size > 1:
            super().filter(batch_indices)
