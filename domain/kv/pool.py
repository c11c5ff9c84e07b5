"""Accounts of KV blocks within a budget of bytes: which are held, cached or free.

             allocate                  release (named)            evicted, least recently used first
    FREE ──────────────> HELD ────────────────────────> CACHED ────────────────────────> FREE
                          ^ │ release (unnamed)           │
                          │ └──────────> FREE             │
                          └──────── retain, acquire ──────┘

The pool holds no arrays, only accounts. An id is never reused, so using the id of a dropped block
is an assertion error and never reaches another block. Before the owner of the arrays fills new
blocks, it drops the arrays of the ids that ``take_dropped`` returns; then the bytes in use never
exceed the budget. The owner polls and the pool has no callbacks: no foreign code runs under the
lock, and the arrays are dropped by the thread that may touch them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import count as counter
from itertools import islice
from typing import NewType, cast

from domain.kv.hashing import BlockHash

#: How often the whole pool may turn over before the owner must call ``take_dropped``.
DROPPED_TURNS_MAX = 4

#: A block of this pool, for as long as it exists.
BlockId = NewType("BlockId", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """The accounts at one instant, in blocks unless the name ends in bytes.

    Attributes:
        budget_bytes: The limit.
        used_bytes: Size of the held and cached blocks.
        total: Blocks that fit the budget.
        held: Blocks with at least one reference.
        cached: Blocks without a reference that can be found by name.
        free: Blocks that can be allocated without an eviction.
        allocated_total: Blocks ever allocated.
        evicted_total: Cached blocks ever evicted, for new blocks or for a smaller budget.
    """

    budget_bytes: int
    used_bytes: int
    total: int
    held: int
    cached: int
    free: int
    allocated_total: int
    evicted_total: int


class BlockPool:
    """Accounts of blocks; every operation is O(1) per block and safe to call from any thread.

    A shortage returns ``None``, misuse is an assertion error. Invariants (``check_integrity``):

    - a block is held or cached, never both, and counted once: held + cached + free = total;
    - a cached block has a name, a name belongs to one block;
    - held + cached never exceed the budget, except after the budget became smaller than the held
      blocks: then nothing is cached or allocated until enough of them are released.

    Args:
        block_bytes: Size of a full block; a tail takes the place of one.
        budget_bytes: Upper bound for all blocks together.
        lock: Entered by each operation. An owner that guards more than the pool with its lock
            passes a ``threading.RLock`` and enters it first.
    """

    def __init__(
        self,
        *,
        block_bytes: int,
        budget_bytes: int,
        lock: AbstractContextManager[object],
    ) -> None:
        assert block_bytes > 0, "a block has a positive size"
        assert budget_bytes >= 0, "a budget is not negative"
        self._block_bytes = block_bytes
        self._budget_bytes = budget_bytes
        self._total = budget_bytes // block_bytes
        self._lock = lock
        self._new_ids = cast("Iterator[BlockId]", counter())
        self._references: dict[BlockId, int] = {}
        self._cached: OrderedDict[BlockId, None] = OrderedDict()
        self._hash_of: dict[BlockId, BlockHash] = {}
        self._id_of: dict[BlockHash, BlockId] = {}
        self._dropped: dict[BlockId, BlockHash | None] = {}
        self._dropped_max = DROPPED_TURNS_MAX * self._total
        self._allocated_total = 0
        self._evicted_total = 0
        self._dropped_total = 0

    def allocate(self, count: int) -> tuple[BlockId, ...] | None:
        """Hold ``count`` new blocks, evicting cached ones where needed.

        Returns:
            Their ids, each with one reference; ``None``, without any change, if the budget has no
            room for them.
        """
        assert count >= 0, "a count is not negative"
        with self._lock:
            assert len(self._dropped) <= self._dropped_max, "the owner must take what was dropped"
            references = self._references
            if len(references) + count > self._total:
                return None
            if self._cached:
                self._evict_down_to(self._total - count)
            ids = tuple(islice(self._new_ids, count))
            self._allocated_total += count
            for block in ids:
                references[block] = 1
            return ids

    def retain(self, ids: Sequence[BlockId]) -> None:
        """Add a reference to each block; the caller knows that they exist."""
        with self._lock:
            for block in ids:
                self._retain(block)

    def acquire(self, name: BlockHash) -> BlockId | None:
        """Find the block of that name and add a reference, in one step."""
        with self._lock:
            block = self._id_of.get(name)
            if block is not None:
                self._retain(block)
            return block

    def release(self, ids: Sequence[BlockId]) -> None:
        """Remove one reference from each block.

        The last reference to a named block leaves it cached, to an unnamed one drops it. Ids come
        in the order of the context: its end is evicted before its start, which others may share.
        """
        with self._lock:
            for block in reversed(ids):
                self._release(block)
            if self._cached:
                self._evict_down_to(self._total)

    def seal(self, block: BlockId, name: BlockHash) -> BlockId:
        """Name a held block whose content is final, or replace it by the block of that name.

        Returns:
            ``block``, or the block that had the name before: then the caller's reference has
            moved to that one, and ``block`` is dropped unless it has another reference.
        """
        with self._lock:
            assert block in self._references, "only a held block can be named"
            assert block not in self._hash_of, "a block is named once"
            known = self._id_of.get(name)
            if known is None:
                self._id_of[name] = block
                self._hash_of[block] = name
                return block
            self._retain(known)
            self._release(block)
            return known

    def find(self, name: BlockHash) -> BlockId | None:
        """Return the block of that name; to use it, ``acquire`` it instead."""
        with self._lock:
            return self._id_of.get(name)

    def touch(self, ids: Sequence[BlockId]) -> None:
        """Make cached blocks the last to be evicted, in the order of ``release``."""
        with self._lock:
            for block in reversed(ids):
                if block in self._cached:
                    self._cached.move_to_end(block)
                else:
                    assert block in self._references, "a block that exists no longer was touched"

    def forget(self, name: BlockHash) -> bool:
        """Remove the name of a block, for example because its content was found wrong.

        A cached block is dropped; a held one is dropped with its last reference.

        Returns:
            Whether the name was known.
        """
        with self._lock:
            block = self._id_of.get(name)
            if block is None:
                return False
            del self._id_of[name], self._hash_of[block]
            if block in self._cached:
                del self._cached[block]
                self._drop(block, name)
            return True

    def reconfigure(self, budget_bytes: int) -> bool:
        """Change the budget, evicting cached blocks at once to fit a smaller one.

        Returns:
            Whether the held blocks fit; if not, they do once enough of them are released.
        """
        assert budget_bytes >= 0, "a budget is not negative"
        with self._lock:
            self._budget_bytes = budget_bytes
            self._total = budget_bytes // self._block_bytes
            self._dropped_max = max(self._dropped_max, DROPPED_TURNS_MAX * self._total)
            self._evict_down_to(self._total)
            return len(self._references) <= self._total

    def take_dropped(self) -> dict[BlockId, BlockHash | None]:
        """Return the blocks that ceased to exist since the last call, with the names they had.

        The owner calls it after each change, and before it fills new blocks. Each block is
        returned once, in the order in which they were dropped.
        """
        with self._lock:
            dropped, self._dropped = self._dropped, {}
            return dropped

    @property
    def pressure(self) -> float:
        """Share of the budget that is held and cannot be evicted, 0 to 1."""
        with self._lock:
            held = len(self._references)
            return 1.0 if held >= self._total else held / self._total

    def stats(self) -> PoolStats:
        """Return the accounts."""
        with self._lock:
            held, cached = len(self._references), len(self._cached)
            return PoolStats(
                budget_bytes=self._budget_bytes,
                used_bytes=(held + cached) * self._block_bytes,
                total=self._total,
                held=held,
                cached=cached,
                free=max(0, self._total - held - cached),
                allocated_total=self._allocated_total,
                evicted_total=self._evicted_total,
            )

    def check_integrity(self) -> None:
        """Assert every invariant; O(blocks), for tests and idle times."""
        with self._lock:
            held, cached = self._references.keys(), self._cached.keys()
            used = len(held) + len(cached)
            assert not held & cached, "a block is both referenced and evictable"
            assert all(count > 0 for count in self._references.values()), "held without a reference"
            assert cached <= self._hash_of.keys(), "a cached block cannot be found"
            assert self._hash_of.keys() <= held | cached, "a name of a block that is gone"
            assert len(self._hash_of) == len(self._id_of), "names and blocks do not pair"
            assert all(self._hash_of[block] == name for name, block in self._id_of.items()), (
                "a name leads to another's block"
            )
            assert self._allocated_total - self._dropped_total == used, "a block was lost"
            assert used <= self._total or not cached, "the budget is exceeded"
            assert not self._dropped.keys() & (held | cached), "dropped, yet in use"

    def _retain(self, block: BlockId) -> None:
        count = self._references.get(block)
        if count is not None:
            self._references[block] = count + 1
            return
        assert block in self._cached, "a block that exists no longer was retained"
        del self._cached[block]
        self._references[block] = 1

    def _release(self, block: BlockId) -> None:
        count = self._references.get(block)
        assert count is not None, "a block without a reference was released"
        if count > 1:
            self._references[block] = count - 1
            return
        del self._references[block]
        if block in self._hash_of:
            self._cached[block] = None
        else:
            self._drop(block, None)

    def _evict_down_to(self, blocks: int) -> None:
        while self._cached and len(self._references) + len(self._cached) > blocks:
            block, _ = self._cached.popitem(last=False)
            name = self._hash_of.pop(block)
            del self._id_of[name]
            self._evicted_total += 1
            self._drop(block, name)

    def _drop(self, block: BlockId, name: BlockHash | None) -> None:
        self._dropped_total += 1
        self._dropped[block] = name
