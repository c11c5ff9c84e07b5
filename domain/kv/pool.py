"""The accounts of the contexts in memory: who holds which blocks, and what is freed next. Pure.

                         park                        trim
    free ── allocate ──> row ──────────────> segment ──────> smaller segment
     ^                  │   ^                 │   │                   │
     └────── free ──────┘   └───── adopt ─────┘   └──── free ─────────┘

A row is a context that runs; it grows, seals its whole blocks, and is never freed for others. A
segment is a parked context. While it is shared, a copy is made from it, and it stays as it is.
Beside contexts the pool has checkpoints. The bytes of all of them never exceed the budget less the
part for copies in flight.

The pool has no arrays. Their owner (``ContextArrays``) has them by context or checkpoint, shortens
or frees them on a call of the pool.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Protocol, TypeVar, assert_never

from domain.kv.checkpoints import (
    CacheCheckpoint,
    CheckpointIndex,
    CheckpointKind,
    CheckpointName,
    checkpoint_fingerprint,
)
from domain.kv.contexts import Context, ContextIndex, KnownPrefix, MemoryStats, nowhere
from domain.kv.hashing import BlockHash, BlockHasher
from domain.kv.relief import (
    DropCheckpoint,
    Evict,
    Holder,
    Relief,
    ReliefOrder,
    Standing,
    TrimEnd,
    TrimStart,
)
from domain.kv.spec import ModelCacheSpec

_T = TypeVar("_T")


class ContextArrays(Protocol):
    """The arrays of contexts and checkpoints. The pool calls it without its lock."""

    def keep(self, context: Context, start: int, stop: int, slots: int) -> None:
        """Free all but the tokens ``start`` to ``stop``, with room for ``slots``."""

    def drop(self, holder: Holder) -> None:
        """Free all arrays of a context or a checkpoint."""


class BlockPool:
    """The contexts and checkpoints of one model within a budget of bytes.

    One thread changes it. The lock is entered by each operation, so lookups, ``forget`` and
    ``stats`` may be called from any thread.

    Args:
        budget_bytes: Limit of contexts, checkpoints and copies in flight together.
        in_flight_bytes: The part of the budget for copies on their way to the disk.
        may_lose: Whether contexts that are not on the disk may be freed now.
        lock: Can be entered again by the thread that has it.
    """

    def __init__(
        self,
        fingerprint: str,
        spec: ModelCacheSpec,
        budget_bytes: int,
        arrays: ContextArrays,
        *,
        in_flight_bytes: int = 0,
        may_lose: Callable[[], bool] = lambda: True,
        lock: AbstractContextManager[object] | None = None,
    ) -> None:
        #: Receives a context and how many of its tokens are left when its memory is freed.
        self.on_cut: Callable[[Context, int], None] = lambda *_: None
        self.spec = spec
        self.hasher = BlockHasher(fingerprint, spec.block_tokens)
        self.budget_bytes = budget_bytes
        #: Limit of contexts and checkpoints together.
        self.limit_bytes = max(0, budget_bytes - in_flight_bytes)
        #: Limit for a new or growing context; one checkpoint always fits beside.
        self.context_limit_bytes = max(0, self.limit_bytes - spec.checkpoint_bytes)
        self.withheld_bytes = 0  # in use elsewhere; only a sequence that runs alone takes them
        self.may_lose = may_lose
        #: The checkpoints in memory; for the thread that changes the pool.
        self.checkpoints = CheckpointIndex(
            BlockHasher(checkpoint_fingerprint(fingerprint), spec.block_tokens)
        )
        self._arrays = arrays
        self._lock = nullcontext() if lock is None else lock
        self._index = ContextIndex(self.hasher, spec.block_tokens)
        self._order = ReliefOrder(
            self._index,
            block_tokens=spec.block_tokens,
            block_bytes=spec.full_bytes(spec.block_tokens),
        )
        self._evicted_blocks = 0
        self._uses = count(1)
        self._forgotten: list[Holder] = []  # not freed yet

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
        """Return what ``look`` returns while no context is freed; for other threads."""
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

    def contexts(self) -> list[Context]:
        """Return all contexts."""
        with self._lock:
            return list(self._index)

    def stats(self) -> MemoryStats:
        """Return the accounts."""
        with self._lock:
            return MemoryStats(
                budget_bytes=self.budget_bytes,
                used_bytes=self.used_bytes,
                blocks=self._index.blocks,
                evicted_blocks=self._evicted_blocks,
                held_bytes=self.used_bytes - self._reclaimable_bytes(lose=False),
                live_bytes=self._order.bytes_by[Standing.LIVE],
            )

    # --- contexts ------------------------------------------------------------------------------

    def allocate(self, slots: int) -> Context:
        """Add a running context without tokens. The caller has made room for it."""
        context = Context(slots=slots, size_bytes=self.spec.live_bytes(slots))
        context.used = next(self._uses)
        with self._lock:
            self._index.add(context)
            self._order.add(context)
        return context

    def grow(self, context: Context, slots: int) -> None:
        """Reserve ``slots`` tokens for a running context. The caller has made room for them."""
        with self._lock, self._order.changing(context):
            context.slots, context.size_bytes = slots, self.spec.live_bytes(slots)

    def seal(self, context: Context, name: BlockHash) -> None:
        """Add the next whole block of a running context."""
        with self._lock:
            self._index.append(context, name)
            first = self._index.holder(name)
            if first is not None:
                self._order.compare(first)

    def cut(self, context: Context, tokens: int) -> None:
        """Remove the tokens of a running context from ``tokens`` on."""
        with self._lock:
            self._index.trim_end(context, tokens)

    def park(self, context: Context) -> None:
        """Turn a running context into a segment."""
        with self._lock, self._order.changing(context):
            context.is_running = False
            context.used = next(self._uses)

    def adopt(self, context: Context, tokens: int) -> None:
        """Make a parked context run again with its first ``tokens``."""
        assert context.is_idle, "a context that is used cannot be adopted"
        with self._lock, self._order.changing(context):
            self._index.trim_end(context, tokens)
            context.is_running, context.is_saved = True, False
            context.used = next(self._uses)

    def share(self, *holders: Holder) -> None:
        """Keep parked contexts and checkpoints as they are until they are released."""
        with self._lock, self._order.changing(*holders):
            for one in holders:
                one.users += 1

    def release(self, *holders: Holder) -> None:
        """End what ``share`` began."""
        with self._lock, self._order.changing(*holders):
            for one in holders:
                assert one.users, "only what is shared is released"
                one.users -= 1

    def record_saved(self, holder: Holder) -> None:
        """Note that the disk has all of a context or a checkpoint, or has it in its queue."""
        with self._lock, self._order.changing(holder):
            holder.is_saved = True

    def touch(self, holder: Holder) -> None:
        """Make a context or a checkpoint the last to be freed."""
        with self._lock, self._order.changing(holder):
            holder.used = next(self._uses)

    def free(self, holder: Holder) -> None:
        """Free a context or a checkpoint; an unknown one is ignored."""
        with self._lock:
            if holder not in self._order:
                return
            if isinstance(holder, CacheCheckpoint):
                self.checkpoints.remove(holder)
            else:
                self._index.remove(holder)
            self._order.remove(holder)
        self._arrays.drop(holder)

    def forget(self, names: Sequence[BlockHash]) -> None:
        """Drop parked contexts that hold blocks of these names, and checkpoints so named.

        From any thread. Their memory is freed by ``collect``.
        """
        wanted = set(names)
        with self._lock:
            for context in list(self._index):
                if not context.is_running and not wanted.isdisjoint(context.names):
                    self._index.remove(context)
                    context.is_forgotten = True
                    self._forgotten.append(context)
            for checkpoint in list(self.checkpoints):
                if checkpoint.name in wanted or checkpoint.parent in wanted:
                    self.checkpoints.remove(checkpoint)
                    self._forgotten.append(checkpoint)

    def collect(self) -> None:
        """Free what ``forget`` removed."""
        with self._lock:
            forgotten, self._forgotten = self._forgotten, []
        for one in forgotten:
            if one.users or (isinstance(one, Context) and one.is_running):
                self._forgotten.append(one)
                continue
            if isinstance(one, Context) and one in self._order:
                self.record_saved(one)  # nothing of it is to be saved
                self.on_cut(one, 0)
            self.free(one)

    def close(self) -> None:
        """Free everything."""
        for checkpoint in list(self._order.checkpoints):
            self.free(checkpoint)
        for context in list(self._order.ends_of):
            self.free(context)

    # --- checkpoints ---------------------------------------------------------------------------

    def checkpoint_name(self, context: Context, position: int) -> CheckpointName:
        """Return the name of the checkpoint of a context at a position."""
        return self.checkpoints.name_at(context, position, self.spec.block_tokens)

    def checkpoints_of(self, context: Context) -> list[CacheCheckpoint]:
        """Return the checkpoints that were made for a context, the first one first."""
        ends = self._order.ends_of[context]
        known = (one for one in ends if self.checkpoints.get(one.name) is one)
        return sorted(known, key=lambda one: one.position)

    def add_checkpoint(
        self,
        context: Context,
        kind: CheckpointKind,
        position: int,
        make: Callable[[CacheCheckpoint], None],
    ) -> CacheCheckpoint | None:
        """Add the checkpoint of a context at a position.

        Args:
            context: Has at least ``position`` tokens, and names for its whole blocks.
            position: Number of tokens before it.
            make: Makes its arrays; called only for a new checkpoint that has room.

        Returns:
            The checkpoint, which may have existed; ``None`` if there is no room for it.
        """
        named = self.checkpoint_name(context, position)
        known = self.checkpoints.get(named.name)
        if known is None:
            size_bytes = self.spec.ends_bytes(position)
            self.share(context)  # it may be parked, and is not freed for its own checkpoint
            has_room = self._make_room(self.limit_bytes - size_bytes)
            self.release(context)
            if not has_room:
                return None
            known = CacheCheckpoint(
                name=named.name,
                parent=named.parent,
                token_ids=named.token_ids,
                position=position,
                kind=kind,
                size_bytes=size_bytes,
            )
            make(known)
            with self._lock:
                self.checkpoints.add(known)
                self._order.add(known)
        with self._lock:
            self._order.join(context, known)
        self.touch(known)
        return known

    def disown(self, context: Context, checkpoint: CacheCheckpoint) -> None:
        """Note that a context does not need a checkpoint any more."""
        with self._lock:
            self._order.part(context, checkpoint)

    # --- room ----------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes that contexts and checkpoints reserve."""
        with self._lock:
            return sum(self._order.bytes_by.values())

    def free_bytes(self, *, alone: bool = False) -> int:
        """Return how many bytes a context can take without freeing others; see ``make_room``."""
        return self.context_limit_bytes - self.used_bytes - self.withheld_bytes * (not alone)

    def could_take(self, size_bytes: int, *, alone: bool) -> bool:
        """Return whether a context could take ``size_bytes`` if all unused ones were freed."""
        return size_bytes <= self.free_bytes(alone=alone) + self._reclaimable_bytes(lose=True)

    def make_room(self, size_bytes: int, *, lose: bool = False, alone: bool = False) -> bool:
        """Free what a context of ``size_bytes`` more needs, or nothing; return whether it can.

        Args:
            lose: Whether contexts that are not on the disk are freed too.
            alone: Whether no other sequence runs; then ``withheld_bytes`` are available.
        """
        goal_bytes = self.used_bytes + self.free_bytes(alone=alone) - size_bytes
        return self._make_room(goal_bytes, lose=lose)

    def fit(self) -> bool:
        """Free contexts beside ``withheld_bytes``; return whether the rest is within the limit."""
        self.collect()
        return self._shrink(self.limit_bytes - self.withheld_bytes, lose=False)

    def _make_room(self, goal_bytes: int, *, lose: bool = False) -> bool:
        self.collect()
        if 0 < self.used_bytes - goal_bytes > self._reclaimable_bytes(lose=lose):
            return False  # and nothing is freed in vain
        return self._shrink(goal_bytes, lose=lose)

    def _shrink(self, goal_bytes: int, *, lose: bool) -> bool:
        while (over_bytes := self.used_bytes - goal_bytes) > 0:
            unsaved = lose or self.may_lose()
            with self._lock:
                relief = self._order.next(over_bytes, unsaved=unsaved)
            if relief is None:
                return False
            self._carry_out(relief)
        return True

    def _reclaimable_bytes(self, *, lose: bool) -> int:
        unsaved = lose or self.may_lose()
        with self._lock:
            return self._order.reclaimable_bytes(unsaved=unsaved)

    def _carry_out(self, relief: Relief) -> None:
        match relief:
            case DropCheckpoint(checkpoint):
                self.free(checkpoint)
            case Evict(context):
                self._lose(context, 0)
                self.free(context)
            case TrimStart(context, start):
                self._trim(context, start, len(context.token_ids))
            case TrimEnd(context, tokens):
                self._lose(context, tokens)
                self._trim(context, context.start, tokens)
            case _:
                assert_never(relief)

    def _lose(self, context: Context, tokens: int) -> None:
        """Count and report what is left of a context."""
        first = max(tokens, context.start) // self.spec.block_tokens
        self._evicted_blocks += len(context.names) - first
        self.on_cut(context, tokens)

    def _trim(self, context: Context, start: int, stop: int) -> None:
        slots = self.spec.blocks_for(stop - start) * self.spec.block_tokens
        size_bytes = self.spec.full_bytes(slots)
        if stop == len(context.token_ids):  # it keeps its window and state layers
            size_bytes += self.spec.live_bytes(start + slots) - self.spec.full_bytes(start + slots)
        self._arrays.keep(context, start, stop, slots)
        with self._lock, self._order.changing(context):
            self._index.trim_end(context, stop)
            self._index.trim_start(context, start)
            context.slots, context.size_bytes = slots, size_bytes

    def check_integrity(
        self, contexts: Collection[Context], checkpoints: Collection[CacheCheckpoint]
    ) -> None:
        """Assert that index, order and accounts agree with what there is; for tests."""
        with self._lock:
            assert set(contexts) == set(self._order.ends_of), "the accounts have other contexts"
            assert set(checkpoints) == set(self._order.checkpoints), "or other checkpoints"
            assert set(self._index) <= set(contexts), "a context that nothing accounts for"
            assert set(self.checkpoints) <= set(checkpoints), "a checkpoint likewise"
            assert self.used_bytes <= self.limit_bytes, "the budget is exceeded"
            held = sum(len(one.names) - one.start // self.spec.block_tokens for one in self._index)
            assert self._index.blocks == held, "blocks are counted wrongly"
            self._order.check_integrity()
