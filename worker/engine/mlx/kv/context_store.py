"""The contexts and checkpoints in memory: arrays, index and accounts, kept consistent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import TypeVar, assert_never

import mlx.core as mx

from domain.kv.checkpoints import (
    CacheCheckpoint,
    CheckpointIndex,
    CheckpointKind,
    CheckpointName,
    checkpoint_fingerprint,
)
from domain.kv.contexts import Context, ContextIndex, KnownPrefix, MemoryStats, nowhere
from domain.kv.hashing import BlockHash, BlockHasher
from domain.kv.relief import DropCheckpoint, Evict, Pack, Relief, ReliefPolicy, TrimEnd, TrimStart
from domain.kv.spec import ModelCacheSpec
from worker.engine.mlx.kv.context_caches import ContextCaches
from worker.engine.mlx.kv.packing import Packing

_T = TypeVar("_T")


class ContextStore:
    """The contexts of one model within a budget of bytes.

    Only the engine thread uses arrays and changes contexts. A lock guards the index and the
    accounts, so ``known_tokens``, ``forget`` and ``stats`` may be called from any thread.

    Args:
        fingerprint: Block fingerprint.
        spec: Layers and sizes.
        budget_bytes: Limit of contexts, checkpoints and copies in flight together.
        in_flight_bytes: The part of it for copies on their way to the disk.
        may_lose: Whether contexts that are not on the disk may be freed now.
        packing: The layers that are stored in 8 bits before a context is freed.
    """

    def __init__(
        self,
        fingerprint: str,
        spec: ModelCacheSpec,
        budget_bytes: int,
        *,
        in_flight_bytes: int = 0,
        may_lose: Callable[[], bool] = lambda: True,
        packing: Packing | None = None,
    ) -> None:
        #: Receives a context and how many of its tokens are left when its memory is freed.
        self.on_cut: Callable[[Context, int], None] = lambda *_: None
        self.spec = spec
        self.hasher = BlockHasher(fingerprint, spec.block_tokens)
        self.budget_bytes = budget_bytes
        #: Limit of contexts and checkpoints together.
        self._limit_bytes = max(0, budget_bytes - in_flight_bytes)
        #: Limit for a new or growing context; one checkpoint always fits beside.
        self.context_limit_bytes = max(0, self._limit_bytes - spec.checkpoint_bytes)
        self.withheld_bytes = 0  # in use elsewhere; only a sequence that runs alone takes them
        self.may_lose = may_lose
        self._lock = threading.RLock()
        self._index = ContextIndex(self.hasher, spec.block_tokens)
        ends_hasher = BlockHasher(checkpoint_fingerprint(fingerprint), spec.block_tokens)
        self._checkpoints = CheckpointIndex(ends_hasher)
        self._policy = ReliefPolicy(
            block_tokens=spec.block_tokens,
            block_bytes=spec.full_bytes(spec.block_tokens),
            packs=bool(packing),
        )
        self._packing = packing
        self._caches: dict[Context, ContextCaches] = {}
        self._ends: dict[CacheCheckpoint, Mapping[str, mx.array]] = {}
        self._used_bytes = self._evicted_blocks = 0
        self._uses = count(1)
        self._forgotten: list[Context | CacheCheckpoint] = []  # their arrays are still there

    # --- lookups, from any thread --------------------------------------------------------------

    def find(
        self, token_ids: Sequence[int], on_disk: Callable[[BlockHash], bool] = nowhere
    ) -> KnownPrefix:
        """Return the beginning of ``token_ids`` that memory and disk have."""
        with self._lock:
            return self._index.find(token_ids, on_disk)

    def diverged_at(self, token_ids: Sequence[int]) -> int | None:
        """Return the first token that differs from all contexts; see ``ContextIndex``."""
        with self._lock:
            return self._index.diverged_at(token_ids)

    def guarded(self, look: Callable[[], _T]) -> _T:
        """Return what ``look`` returns while no context is dropped; for other threads."""
        with self._lock:
            return look()

    def __contains__(self, name: object) -> bool:
        """Return whether a context holds the block of that name."""
        with self._lock:
            return name in self._index

    def holder(self, name: BlockHash) -> Context | None:
        """Return a context that holds the block of that name."""
        with self._lock:
            return self._index.holder(name)

    @property
    def checkpoints(self) -> CheckpointIndex:
        """The checkpoints in memory; for the engine thread."""
        return self._checkpoints

    def contexts(self) -> list[Context]:
        """Return all contexts."""
        with self._lock:
            return list(self._index)

    def forget(self, names: Sequence[BlockHash]) -> None:
        """Drop parked contexts that hold blocks of these names, and checkpoints so named."""
        wanted = set(names)
        with self._lock:
            for context in list(self._index):
                if not context.is_running and not wanted.isdisjoint(context.names):
                    self._index.remove(context)
                    context.is_forgotten = True
                    self._forgotten.append(context)
            for checkpoint in list(self._checkpoints):
                if checkpoint.name in wanted or checkpoint.parent in wanted:
                    self._checkpoints.remove(checkpoint)
                    self._forgotten.append(checkpoint)

    def stats(self) -> MemoryStats:
        """Return the accounts."""
        with self._lock:
            size = self.spec.block_tokens
            return MemoryStats(
                budget_bytes=self.budget_bytes,
                used_bytes=self._used_bytes,
                blocks=sum(len(one.names) - one.start // size for one in self._index),
                evicted_blocks=self._evicted_blocks,
                held_bytes=self._used_bytes - self._reclaimable_bytes(lose=False),
                live_bytes=sum(one.size_bytes for one in self._index if one.is_running),
            )

    # --- contexts ------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes that contexts and checkpoints reserve."""
        return self._used_bytes

    def free_bytes(self, *, alone: bool = False) -> int:
        """Return how many bytes a context can take without freeing others; see ``make_room``."""
        return self.context_limit_bytes - self._used_bytes - self.withheld_bytes * (not alone)

    def could_take(self, size_bytes: int, *, alone: bool) -> bool:
        """Return whether a context could take ``size_bytes`` if all unused ones were freed."""
        missing_bytes = size_bytes - self.free_bytes(alone=alone)
        return missing_bytes <= 0 or missing_bytes <= self._reclaimable_bytes(lose=True)

    def is_held(self, share: float) -> bool:
        """Return whether so large a share of the budget cannot be freed at once."""
        return self._used_bytes >= share * self.budget_bytes and self.stats().fill >= share

    def caches(self, context: Context) -> ContextCaches:
        """Return the caches of a context."""
        return self._caches[context]

    def open(self, caches: ContextCaches, slots: int) -> Context:
        """Add a running context without tokens. The caller has made room for it."""
        context = Context(slots=slots, size_bytes=self.spec.live_bytes(slots))
        with self._lock:
            self._used_bytes += context.size_bytes
            self._caches[context] = caches
            self._index.add(context)
        self.touch(context)
        return context

    def resize(self, context: Context, slots: int) -> None:
        """Reserve ``slots`` tokens for a running context. The caller has made room for them."""
        self._reserve(context, slots, self.spec.live_bytes(slots))

    def _reserve(self, context: Context, slots: int, size_bytes: int) -> None:
        with self._lock:
            self._used_bytes += size_bytes - context.size_bytes
        context.slots, context.size_bytes = slots, size_bytes

    def cut(self, context: Context, tokens: int) -> None:
        """Remove the tokens of a running context from ``tokens`` on."""
        with self._lock:
            self._index.trim_end(context, tokens)

    def seal(self, context: Context, name: BlockHash) -> None:
        """Add the next whole block of a running context."""
        with self._lock:
            self._index.append(context, name)

    def adopt(self, context: Context, tokens: int) -> None:
        """Make a parked context run again with its first ``tokens``."""
        assert context.is_idle, "a context that is used cannot be adopted"
        with self._lock:
            self._index.trim_end(context, tokens)
        context.is_running, context.is_saved, context.is_packed = True, False, False
        self.touch(context)

    def park(self, context: Context, caches: ContextCaches) -> None:
        """Turn a running context into a segment; copies nothing."""
        context.is_running = False
        self._caches[context] = caches
        self.touch(context)

    def drop(self, context: Context) -> None:
        """Free a context."""
        with self._lock:
            self._index.remove(context)
            self._used_bytes -= context.size_bytes
            del self._caches[context]
            for checkpoint in self._checkpoints:
                checkpoint.contexts.discard(context)

    def touch(self, used: Context | CacheCheckpoint) -> None:
        """Make a context or a checkpoint the last to be freed."""
        used.used = next(self._uses)

    # --- checkpoints ---------------------------------------------------------------------------

    def checkpoint_name(self, context: Context, position: int) -> CheckpointName:
        """Return the name of the checkpoint of a context at a position."""
        return self._checkpoints.name_at(context, position, self.spec.block_tokens)

    def add_checkpoint(
        self,
        context: Context,
        kind: CheckpointKind,
        position: int,
        cut: Callable[[], Mapping[str, mx.array]],
    ) -> CacheCheckpoint | None:
        """Add the checkpoint of a context at a position.

        Args:
            context: Has at least ``position`` tokens, and names for its whole blocks.
            kind: Why it is made.
            position: Number of tokens before it.
            cut: Returns its arrays; called only for a new checkpoint that has room.

        Returns:
            The checkpoint, which may have existed; ``None`` if there is no room for it.
        """
        named = self.checkpoint_name(context, position)
        if (known := self._checkpoints.get(named.name)) is None:
            size_bytes = self.spec.ends_bytes(position)
            context.users += 1  # it may be parked, and is not freed for its own checkpoint
            has_room = self._make_room(self._limit_bytes - size_bytes)
            context.users -= 1
            if not has_room:
                return None
            known = CacheCheckpoint(
                name=named.name,
                parent=named.parent,
                token_ids=named.token_ids,
                position=position,
                kind=kind,
            )
            known.size_bytes = size_bytes
            arrays = cut()
            with self._lock:
                self._ends[known] = arrays
                self._used_bytes += size_bytes
                self._checkpoints.add(known)
        known.contexts.add(context)
        self.touch(known)
        return known

    def ends(self, checkpoint: CacheCheckpoint) -> Mapping[str, mx.array]:
        """Return the arrays of a checkpoint."""
        return self._ends[checkpoint]

    def drop_checkpoint(self, checkpoint: CacheCheckpoint) -> None:
        """Free the arrays of a checkpoint."""
        with self._lock:
            self._checkpoints.remove(checkpoint)
            if self._ends.pop(checkpoint, None) is not None:
                self._used_bytes -= checkpoint.size_bytes

    # --- memory --------------------------------------------------------------------------------

    def make_room(self, size_bytes: int, *, lose: bool = False, alone: bool = False) -> bool:
        """Free what a context of ``size_bytes`` more needs, or nothing; return whether it can.

        Args:
            size_bytes: Bytes that are needed.
            lose: Whether contexts that are not on the disk are freed too.
            alone: Whether no other sequence runs; then ``withheld_bytes`` are available.
        """
        goal_bytes = self._used_bytes + self.free_bytes(alone=alone) - size_bytes
        return self._make_room(goal_bytes, lose=lose)

    def fit(self) -> bool:
        """Free contexts beside ``withheld_bytes``; return whether the rest is within the limit."""
        return self._shrink(self._limit_bytes - self.withheld_bytes, lose=False)

    def _make_room(self, goal_bytes: int, *, lose: bool = False) -> bool:
        self.collect()
        if 0 < self._used_bytes - goal_bytes > self._reclaimable_bytes(lose=lose):
            return False  # and nothing is freed in vain
        return self._shrink(goal_bytes, lose=lose)

    def _shrink(self, goal_bytes: int, *, lose: bool) -> bool:
        while (over_bytes := self._used_bytes - goal_bytes) > 0:
            if not self._relieve(over_bytes, lose=lose):
                return False
        return True

    def _reclaimable_bytes(self, *, lose: bool) -> int:
        """Return how many bytes could be freed at once. Reads all contexts, so it is slow."""
        unsaved = lose or self.may_lose()
        with self._lock:
            return self._policy.reclaimable_bytes(self._caches, self._ends, unsaved=unsaved)

    def _relieve(self, size_bytes: int, *, lose: bool) -> bool:
        unsaved = lose or self.may_lose()
        with self._lock:
            relief = self._policy.next(self._index, self._checkpoints, size_bytes, unsaved=unsaved)
        if relief is not None:
            self._free(relief)
        return relief is not None

    def _free(self, relief: Relief) -> None:
        size = self.spec.block_tokens
        match relief:
            case DropCheckpoint(checkpoint):
                self.drop_checkpoint(checkpoint)
            case Evict(context):
                self._evicted_blocks += len(context.names) - context.start // size
                self.on_cut(context, 0)
                self.drop(context)
            case TrimStart(context, start):
                self._keep(context, start, len(context.token_ids))
                with self._lock:
                    self._index.trim_start(context, start)
            case TrimEnd(context, tokens):
                self._evicted_blocks += len(context.names) - tokens // size
                self.on_cut(context, tokens)
                self._keep(context, context.start, tokens)
                with self._lock:
                    self._index.trim_end(context, tokens)
            case Pack(context, needed_bytes):
                assert self._packing is not None, "only then is it chosen"
                caches = self._caches[context]
                context.is_packed = caches.pack(self._packing.groups, needed_bytes)
                self._reserve(context, 0, caches.nbytes)
            case _:
                assert_never(relief)

    def _keep(self, context: Context, start: int, stop: int) -> None:
        slots = self.spec.blocks_for(stop - start) * self.spec.block_tokens
        size_bytes = self.spec.full_bytes(slots)
        if stop == len(context.token_ids):  # it keeps its window and state layers
            size_bytes += self.spec.live_bytes(start + slots) - self.spec.full_bytes(start + slots)
        caches = self._caches[context]
        caches.keep(start, stop, slots)
        if caches.is_packed:
            slots, size_bytes = 0, caches.nbytes
        self._reserve(context, slots, size_bytes)

    def collect(self) -> None:
        """Free what ``forget`` removed."""
        with self._lock:
            forgotten, self._forgotten = self._forgotten, []
        for one in forgotten:
            if one.users or (isinstance(one, Context) and one.is_running):
                self._forgotten.append(one)
            elif isinstance(one, CacheCheckpoint):
                self.drop_checkpoint(one)
            elif one in self._caches:
                one.is_saved = True  # nothing of it is to be saved
                self.on_cut(one, 0)
                self.drop(one)

    def close(self) -> None:
        """Free everything."""
        for checkpoint in list(self._checkpoints):
            self.drop_checkpoint(checkpoint)
        for context in list(self._caches):
            self.drop(context)

    def check_integrity(self) -> None:
        """Assert that index, arrays and accounts agree; for tests."""
        with self._lock:
            assert set(self._index) <= set(self._caches), "a context without arrays"
            reserved = sum(one.size_bytes for part in (self._caches, self._ends) for one in part)
            assert reserved == self._used_bytes, "the accounts differ from the contexts"
            assert self._used_bytes <= self._limit_bytes, "the budget is exceeded"
            for one, caches in self._caches.items():
                assert caches.nbytes <= one.size_bytes, "a context exceeds its reservation"
            for checkpoint, arrays in self._ends.items():
                size_bytes = sum(array.nbytes for array in arrays.values())
                assert size_bytes <= checkpoint.size_bytes, "a checkpoint exceeds its reservation"
