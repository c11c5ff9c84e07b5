"""Which memory is freed first when a context needs room. Pure.

In this order: checkpoints that the disk has; beginnings that another context holds too; precision,
where contexts may be stored in 8 bits; the least recently used contexts that nothing uses, their
ends first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from domain.kv.checkpoints import CacheCheckpoint
from domain.kv.contexts import Context, ContextIndex

#: A context is evicted whole where fewer blocks than this would stay.
KEPT_BLOCKS_MIN = 1
#: A trim frees at least this share of a context, because it copies what stays.
TRIMMED_SHARE = 4


@dataclass(frozen=True, slots=True)
class DropCheckpoint:
    """Free the arrays of a checkpoint."""

    checkpoint: CacheCheckpoint


@dataclass(frozen=True, slots=True)
class TrimStart:
    """Free the tokens of a context before ``start``."""

    context: Context
    start: int


@dataclass(frozen=True, slots=True)
class TrimEnd:
    """Free the tokens of a context from ``tokens`` on."""

    context: Context
    tokens: int


@dataclass(frozen=True, slots=True)
class Evict:
    """Free a context."""

    context: Context


@dataclass(frozen=True, slots=True)
class Pack:
    """Store layers of a context in 8 bits until ``needed_bytes`` are free."""

    context: Context
    needed_bytes: int


Relief: TypeAlias = DropCheckpoint | TrimStart | TrimEnd | Evict | Pack


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefPolicy:
    """Chooses what to free.

    Attributes:
        block_bytes: Bytes of the full-attention layers in a block.
        packs: Whether contexts are stored in 8 bits before they are freed.
    """

    block_tokens: int
    block_bytes: int
    packs: bool = False

    def next(
        self,
        index: ContextIndex,
        checkpoints: Iterable[CacheCheckpoint],
        needed_bytes: int,
        *,
        unsaved: bool,
    ) -> Relief | None:
        """Return what to free next; ``None`` if nothing can be freed.

        Args:
            index: The contexts in memory.
            checkpoints: The checkpoints in memory.
            needed_bytes: Bytes to free.
            unsaved: Whether contexts and checkpoints that the disk does not have may be freed.
        """
        droppable = [one for one in checkpoints if not one.users and (one.is_saved or unsaved)]
        if droppable:
            return DropCheckpoint(min(droppable, key=lambda one: one.used))
        idle = sorted((one for one in index if one.is_idle), key=lambda one: one.used)
        for context in idle:
            shared = index.shared_blocks(context)
            if shared:
                start = context.start + shared * self.block_tokens
                if start >= len(context.token_ids):
                    return Evict(context)
                return TrimStart(context, start)
        evictable = [one for one in idle if one.is_saved or unsaved]
        if not evictable:
            return None
        exact = [one for one in evictable if not one.is_packed]
        if self.packs and exact:
            return Pack(exact[0], needed_bytes)
        return self._shortened(evictable[0], needed_bytes)

    @staticmethod
    def reclaimable_bytes(
        contexts: Collection[Context], checkpoints: Collection[CacheCheckpoint], *, unsaved: bool
    ) -> int:
        """Return how many bytes could be freed at once.

        Args:
            contexts: All contexts in memory.
            checkpoints: All checkpoints in memory.
            unsaved: Whether what the disk does not have may be freed.
        """
        idle = {one for one in contexts if one.is_idle and (one.is_saved or unsaved)}
        ends = (one for one in checkpoints if not one.users and one.is_saved)
        if unsaved:  # checkpoints that wait for the disk are unpinned with their contexts
            ends = (one for one in checkpoints if not one.users or set() < one.contexts <= idle)
        return sum(one.size_bytes for one in idle) + sum(one.size_bytes for one in ends)

    def _shortened(self, context: Context, needed_bytes: int) -> Relief:
        """Trim the end of a context, or evict it where little would stay."""
        held = len(context.names) - context.start // self.block_tokens
        wanted = -(-needed_bytes // self.block_bytes) if self.block_bytes else held
        kept = held - max(wanted, held // TRIMMED_SHARE + 1)
        if kept < KEPT_BLOCKS_MIN:
            return Evict(context)
        return TrimEnd(context, context.start + kept * self.block_tokens)
