"""The blocks in memory: accounts, names and arrays kept in step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from domain.kv.hashing import BlockHash
from domain.kv.pool import BlockId, BlockPool, PoolStats
from domain.kv.prefix_index import Match, PrefixIndex
from domain.kv.spec import ModelCacheSpec
from worker.engine.mlx.kv.arrays import BlockArrays


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedPrefix:
    """The start of a context, held so that it cannot be evicted.

    Attributes:
        names: Names of its whole blocks, in order.
        ids: The same blocks in the pool.
        tail_id: The block after them of which only the beginning may serve, or ``None``.
        tail_tokens: How much of it serves.
        tokens: Tokens of all of this.
    """

    names: tuple[BlockHash, ...] = ()
    ids: tuple[BlockId, ...] = ()
    tail_id: BlockId | None = None
    tail_tokens: int = 0
    tokens: int = 0


class BlockMemory:
    """Blocks of one model within a budget of bytes.

    It belongs to the engine thread, which alone touches arrays. ``known_tokens`` may be called from
    any thread: names and accounts are behind a lock.

    Args:
        fingerprint: What the blocks are computed with.
        spec: What a block holds.
        budget_bytes: What all blocks together may take; never exceeded.
    """

    def __init__(self, fingerprint: str, spec: ModelCacheSpec, budget_bytes: int) -> None:
        self._lock = threading.Lock()
        self._pool = BlockPool(block_bytes=spec.block_bytes, budget_bytes=budget_bytes)
        self._block_bytes = spec.block_bytes
        self._index = PrefixIndex(fingerprint, spec)
        self._arrays: dict[BlockId, BlockArrays] = {}

    def known_tokens(self, token_ids: Sequence[int]) -> int:
        """Return how many of the first tokens are known now; later it may be more or less."""
        with self._lock:
            return self._index.longest_match(token_ids).tokens

    def diverged_at(self, token_ids: Sequence[int]) -> int | None:
        """Return where tokens contradict what is known to follow there, if they do."""
        with self._lock:
            divergence = self._index.nearest_divergence(token_ids)
        if divergence is None or not divergence.contradicted:
            return None
        return divergence.token_index

    def __contains__(self, name: object) -> bool:
        """Tell whether the block of that name is here."""
        with self._lock:
            return name in self._index

    def hold(self, token_ids: Sequence[int], tokens_min: int) -> PinnedPrefix:
        """Hold the blocks that save most of computing ``token_ids``, if that is ``tokens_min``."""
        with self._lock:
            match = self._index.longest_match(token_ids)
            return self._held(match) if match.tokens >= tokens_min else PinnedPrefix()

    def acquire(self, name: BlockHash) -> BlockId | None:
        """Hold the block of that name, if it is here."""
        with self._lock:
            return self._pool.acquire(name)

    def arrays(self, block: BlockId) -> BlockArrays:
        """Return what a held block holds."""
        return self._arrays[block]

    def keep(
        self,
        name: BlockHash,
        parent: BlockHash | None,
        token_ids: Sequence[int],
        cut: Callable[[], BlockArrays | None],
    ) -> BlockId | None:
        """Hold the block of that name, cutting it where it is not known.

        Args:
            name: Of the block.
            parent: Name of the block before it.
            token_ids: Its tokens.
            cut: Makes its arrays; called once there is room for them.

        Returns:
            The block with a reference for the caller; ``None`` where there is no room or nothing
            to cut.
        """
        with self._lock:
            known = self._pool.acquire(name)
            if known is not None:
                return known
            room = self._pool.allocate(1)
            self._drop_arrays()
        if room is None:
            return None
        (block,) = room
        arrays = None
        try:
            arrays = cut()
        finally:
            kept = self._fill(block, arrays, name, parent, token_ids)
        return block if kept else None

    def _fill(
        self,
        block: BlockId,
        arrays: BlockArrays | None,
        name: BlockHash,
        parent: BlockHash | None,
        token_ids: Sequence[int],
    ) -> bool:
        """Give an allocated block its content, or its room back."""
        with self._lock:
            if arrays is None:
                self._pool.release([block])
                self._drop_arrays()
                return False
            self._arrays[block] = arrays
            sealed = self._pool.seal(block, name)
            assert sealed == block, "only this thread keeps blocks"
            forgotten = self._index.insert(name, parent, token_ids)
            if forgotten is not None:
                self._pool.forget(forgotten)
                self._drop_arrays()
        return True

    def release(self, ids: Sequence[BlockId]) -> None:
        """Give back a reference to each block; they stay until room is needed."""
        with self._lock:
            self._pool.release(ids)
            self._drop_arrays()

    def forget(self, name: BlockHash) -> None:
        """Give up a block that another has made superfluous."""
        with self._lock:
            self._pool.forget(name)
            self._index.remove(name)
            self._drop_arrays()

    def resize(self, budget_bytes: int) -> None:
        """Change the budget, evicting what nobody holds."""
        with self._lock:
            self._pool.reconfigure(budget_bytes)
            self._drop_arrays()

    def held_bytes(self) -> int:
        """Return the size of the blocks that cannot be evicted."""
        return self._pool.stats().held * self._block_bytes

    def used_bytes(self) -> int:
        """Return the size of all blocks."""
        return self._pool.stats().used_bytes

    def close(self) -> None:
        """Drop all blocks that nobody holds, and keep no others."""
        with self._lock:
            self._pool.reconfigure(0)
            self._drop_arrays()

    def stats(self) -> PoolStats:
        """Return the accounts."""
        return self._pool.stats()

    def check_integrity(self) -> None:
        """Assert that accounts, names and arrays are in step; for tests."""
        with self._lock:
            self._pool.check_integrity()
            stats = self._pool.stats()
            assert len(self._arrays) == stats.held + stats.cached, "arrays of no block"
            assert len(self._index) <= len(self._arrays), "a name of no block"
            used = sum(arrays.nbytes for arrays in self._arrays.values())
            assert used <= stats.used_bytes <= stats.budget_bytes, "the budget is exceeded"

    def _held(self, match: Match) -> PinnedPrefix:
        tail = match.tail
        ids = tuple(self._acquired(name) for name in match.full)
        return PinnedPrefix(
            names=match.full,
            ids=ids,
            tail_id=None if tail is None else self._acquired(tail.hash),
            tail_tokens=0 if tail is None else tail.usable_tokens,
            tokens=match.tokens,
        )

    def _acquired(self, name: BlockHash) -> BlockId:
        block = self._pool.acquire(name)
        assert block is not None, "what the index knows is in the pool"
        return block

    def _drop_arrays(self) -> None:
        for block, name in self._pool.take_dropped().items():
            self._arrays.pop(block, None)
            if name is not None:
                self._index.remove(name)
