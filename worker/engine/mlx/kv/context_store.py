"""The arrays of the contexts and checkpoints in memory, beside the pool that accounts for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import mlx.core as mx

from domain.kv.checkpoints import CacheCheckpoint, CheckpointKind
from domain.kv.contexts import Context
from domain.kv.pool import BlockPool
from domain.kv.relief import Holder
from domain.kv.spec import ModelCacheSpec
from worker.engine.mlx.kv.context_caches import ContextCaches
from worker.engine.mlx.kv.packing import Packing


class ContextStore:
    """The arrays of one model's contexts. Belongs to the engine thread.

    Args:
        fingerprint: Block fingerprint.
        spec: Layers and sizes.
        budget_bytes: See ``BlockPool``.
        in_flight_bytes: See ``BlockPool``.
        may_lose: See ``BlockPool``.
        packing: The layers that are stored in 8 bits before a context is freed.
    """

    def __init__(
        self,
        fingerprint: str,
        spec: ModelCacheSpec,
        budget_bytes: int,
        *,
        in_flight_bytes: int,
        may_lose: Callable[[], bool],
        packing: Packing,
    ) -> None:
        self.pool = BlockPool(
            fingerprint,
            spec,
            budget_bytes,
            self,
            in_flight_bytes=in_flight_bytes,
            may_lose=may_lose,
            packs=bool(packing),
            lock=threading.RLock(),
        )
        self._packing = packing
        self._caches: dict[Context, ContextCaches] = {}
        self._ends: dict[CacheCheckpoint, Mapping[str, mx.array]] = {}

    def caches(self, context: Context) -> ContextCaches:
        """Return the caches of a context."""
        return self._caches[context]

    def ends(self, checkpoint: CacheCheckpoint) -> Mapping[str, mx.array]:
        """Return the arrays of a checkpoint."""
        return self._ends[checkpoint]

    def open(self, caches: ContextCaches, slots: int) -> Context:
        """Add a running context without tokens. The caller has made room for it."""
        context = self.pool.allocate(slots)
        self._caches[context] = caches
        return context

    def park(self, context: Context, caches: ContextCaches) -> None:
        """Turn a running context into a segment; copies nothing."""
        self._caches[context] = caches
        self.pool.park(context)

    def add_checkpoint(
        self,
        context: Context,
        kind: CheckpointKind,
        position: int,
        cut: Callable[[], Mapping[str, mx.array]],
    ) -> CacheCheckpoint | None:
        """Add the checkpoint of a context, whose arrays ``cut`` returns; see ``BlockPool``."""

        def make(checkpoint: CacheCheckpoint) -> None:
            self._ends[checkpoint] = cut()

        return self.pool.add_checkpoint(context, kind, position, make)

    # --- for the pool --------------------------------------------------------------------------

    def keep(self, context: Context, start: int, stop: int, slots: int) -> int | None:
        """See ``ContextArrays``."""
        caches = self._caches[context]
        caches.keep(start, stop, slots)
        return caches.nbytes if caches.is_packed else None

    def pack(self, context: Context, needed_bytes: int) -> tuple[bool, int]:
        """See ``ContextArrays``."""
        caches = self._caches[context]
        return caches.pack(self._packing.groups, needed_bytes), caches.nbytes

    def drop(self, holder: Holder) -> None:
        """See ``ContextArrays``."""
        if isinstance(holder, Context):
            del self._caches[holder]
        else:
            del self._ends[holder]

    def check_integrity(self) -> None:
        """Assert that arrays and accounts agree; for tests."""
        self.pool.check_integrity(self._caches, self._ends)
        for one, caches in self._caches.items():
            assert caches.nbytes <= one.size_bytes, "a context exceeds its reservation"
        for checkpoint, arrays in self._ends.items():
            size_bytes = sum(array.nbytes for array in arrays.values())
            assert size_bytes <= checkpoint.size_bytes, "a checkpoint exceeds its reservation"
