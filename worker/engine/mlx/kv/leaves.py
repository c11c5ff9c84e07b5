"""The mlx-lm cache classes that can be cut into blocks, and where each stores one sequence.

The layouts are those of ``mlx_lm.models.cache``: the ``state`` property of each class.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mlx_lm.models.cache import ArraysCache, CacheList, KVCache

from worker.engine.mlx.kv.window_cache import WindowKVCache

# Compared by exact class, because a subclass may store other data in the same attributes.
SLIDING_CLASSES = (WindowKVCache,)
STATE_CLASSES = (ArraysCache,)
#: Those that can take back their last ``WINDOW_SLACK_TOKENS`` at any length.
TRIMMABLE_CLASSES = (KVCache, *SLIDING_CLASSES)


class UnsupportedCache(Exception):
    """A model's caches cannot be cut into blocks and restored; it runs without a prefix cache."""


def leaves(caches: Iterable[Any]) -> list[Any]:
    """Return the caches with every ``CacheList`` flattened, in the order of the model's layers."""
    found: list[Any] = []
    for cache in caches:
        if type(cache) is CacheList:
            found += leaves(cache.caches)
        else:
            found.append(cache)
    return found
