"""The blocks in memory: pool accounting, prefix index and arrays, kept consistent."""

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
    """The blocks of a context's prefix, pinned so that they cannot be evicted.

    Attributes:
        names: Hashes of its whole blocks, in order.
        ids: Pool ids of the same blocks.
        tail_id: Pool id of the block after them, of which a part may be used, or ``None``.
        tail_tokens: Usable tokens of the tail block.
        tokens: Tokens of the whole prefix, the usable tail included.
    """

    names: tuple[BlockHash, ...] = ()
    ids: tuple[BlockId, ...] = ()
    tail_id: BlockId | None = None
    tail_tokens: int = 0
    tokens: int = 0


class BlockMemory:
    """Blocks of one model within a byte budget.

    Only the engine thread adds blocks and touches arrays. A lock guards the pool and the prefix
    index, so ``known_tokens``, ``forget`` and ``stats`` may be called from any thread.

    Args:
        fingerprint: Block fingerprint; see ``block_fingerprint``.
        spec: Layers and sizes of a block.
        budget_bytes: Upper bound for all blocks together; never exceeded.
    """

    def __init__(self, fingerprint: str, spec: ModelCacheSpec, budget_bytes: int) -> None:
        # The pool enters it again, so that it guards the figures too.
        self._lock = threading.RLock()
        self._pool = BlockPool(
            block_bytes=spec.block_bytes, budget_bytes=budget_bytes, lock=self._lock
        )
        self._block_bytes = spec.block_bytes
        self._index = PrefixIndex(fingerprint, spec)
        self._arrays: dict[BlockId, BlockArrays] = {}

    def known_tokens(self, token_ids: Sequence[int]) -> int:
        """Return how many of the first tokens stored blocks cover at the moment."""
        with self._lock:
            return self._index.longest_match(token_ids).tokens

    def diverged_at(self, token_ids: Sequence[int]) -> int | None:
        """Return the index of the first token that differs from every stored continuation.

        ``None`` if the tokens agree with a stored context, or no stored context shares a prefix.
        """
        with self._lock:
            divergence = self._index.nearest_divergence(token_ids)
        if divergence is None or not divergence.contradicted:
            return None
        return divergence.token_index

    def __contains__(self, name: object) -> bool:
        """Return whether the block of that name is stored."""
        with self._lock:
            return name in self._index

    def pin(self, token_ids: Sequence[int], tokens_min: int) -> PinnedPrefix:
        """Pin the longest stored prefix of ``token_ids``; empty if below ``tokens_min``."""
        with self._lock:
            match = self._index.longest_match(token_ids)
            return self._pin_match(match) if match.tokens >= tokens_min else PinnedPrefix()

    def acquire(self, name: BlockHash) -> BlockId | None:
        """Pin the block of that name; ``None`` if it is not stored."""
        with self._lock:
            return self._pool.acquire(name)

    def arrays(self, block: BlockId) -> BlockArrays:
        """Return the arrays of a pinned block."""
        return self._arrays[block]

    def add(
        self,
        name: BlockHash,
        parent: BlockHash | None,
        token_ids: Sequence[int],
        cut: Callable[[], BlockArrays | None],
    ) -> BlockId | None:
        """Store a block unless it is stored already, and pin it.

        Args:
            name: Hash of the block.
            parent: Hash of the block before it, ``None`` at the start of a context.
            token_ids: The block's tokens.
            cut: Returns the block's arrays. Called only for a new block, after its memory is
                allocated.

        Returns:
            The pinned block; ``None`` where no memory can be freed or ``cut`` returned ``None``.
        """
        with self._lock:
            known = self._pool.acquire(name)
            if known is not None:
                return known
            allocated = self._pool.allocate(1)
            self._drop_arrays()
        if allocated is None:
            return None
        (block,) = allocated
        arrays = None
        try:
            arrays = cut()
        finally:
            filled = self._fill(block, arrays, name, parent, token_ids)
        return block if filled else None

    def _fill(
        self,
        block: BlockId,
        arrays: BlockArrays | None,
        name: BlockHash,
        parent: BlockHash | None,
        token_ids: Sequence[int],
    ) -> bool:
        """Fill an allocated block, or release it where there are no arrays."""
        with self._lock:
            if arrays is None:
                self._pool.release([block])
                self._drop_arrays()
                return False
            self._arrays[block] = arrays
            sealed = self._pool.seal(block, name)
            assert sealed == block, "only this thread adds blocks"
            forgotten = self._index.insert(name, parent, token_ids)
            if forgotten is not None:
                self._pool.forget(forgotten)
                self._drop_arrays()
        return True

    def release(self, ids: Sequence[BlockId]) -> None:
        """Unpin the blocks once; they stay cached until their memory is needed."""
        with self._lock:
            self._pool.release(ids)
            self._drop_arrays()

    def forget(self, name: BlockHash) -> None:
        """Drop a block from the index; its memory is freed once it is not pinned."""
        with self._lock:
            self._pool.forget(name)
            self._index.remove(name)
            self._drop_arrays()

    def resize(self, budget_bytes: int) -> None:
        """Change the budget, evicting unpinned blocks that exceed it."""
        with self._lock:
            self._pool.reconfigure(budget_bytes)
            self._drop_arrays()

    def held_bytes(self) -> int:
        """Return the size in bytes of the pinned blocks."""
        return self._pool.stats().held * self._block_bytes

    def used_bytes(self) -> int:
        """Return the size in bytes of all blocks."""
        return self._pool.stats().used_bytes

    def close(self) -> None:
        """Drop all unpinned blocks and accept no new ones."""
        with self._lock:
            self._pool.reconfigure(0)
            self._drop_arrays()

    def stats(self) -> PoolStats:
        """Return the pool's figures."""
        return self._pool.stats()

    def check_integrity(self) -> None:
        """Assert that pool, index and arrays agree; for tests."""
        with self._lock:
            self._pool.check_integrity()
            stats = self._pool.stats()
            assert len(self._arrays) == stats.held + stats.cached, "arrays without a block"
            assert len(self._index) <= len(self._arrays), "a name without a block"
            used = sum(arrays.nbytes for arrays in self._arrays.values())
            assert used <= stats.used_bytes <= stats.budget_bytes, "the budget is exceeded"

    def _pin_match(self, match: Match) -> PinnedPrefix:
        tail = match.tail
        ids = tuple(self._acquire_known(name) for name in match.full)
        return PinnedPrefix(
            names=match.full,
            ids=ids,
            tail_id=None if tail is None else self._acquire_known(tail.hash),
            tail_tokens=0 if tail is None else tail.usable_tokens,
            tokens=match.tokens,
        )

    def _acquire_known(self, name: BlockHash) -> BlockId:
        block = self._pool.acquire(name)
        assert block is not None, "what the index knows is in the pool"
        return block

    def _drop_arrays(self) -> None:
        for block, name in self._pool.take_dropped().items():
            self._arrays.pop(block, None)
            if name is not None:
                self._index.remove(name)
