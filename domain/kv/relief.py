"""Which memory is freed first when a context needs room. Pure.

In this order: checkpoints that the disk has; beginnings that another context holds too; the least
recently used contexts that nothing uses, their ends first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, TypeAlias, TypeVar

from domain.kv.checkpoints import CacheCheckpoint
from domain.kv.contexts import Context, ContextIndex

#: A context is evicted whole where fewer blocks than this would stay.
KEPT_BLOCKS_MIN = 1
#: A trim frees at least this share of a context, because it copies what stays.
TRIMMED_SHARE = 4

#: What takes memory of the pool.
Holder: TypeAlias = Context | CacheCheckpoint
_H = TypeVar("_H", Context, CacheCheckpoint)


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


Relief: TypeAlias = DropCheckpoint | TrimStart | TrimEnd | Evict


class Standing(Enum):
    """Whether memory can be freed at once."""

    #: A running context.
    LIVE = auto()
    #: A parked context or a checkpoint that a copy or a write uses.
    BUSY = auto()
    #: Idle, and the disk does not have it. A checkpoint that waits for the disk counts here if all
    #: its contexts are idle, because it is unpinned with them.
    UNSAVED = auto()
    #: Idle, and the disk has it.
    SAVED = auto()


class LeastRecent(Generic[_H]):
    """Holders in the order of their last use. No two have the same ``used``."""

    def __init__(self) -> None:
        self._uses: list[int] = []
        self._by_use: dict[int, _H] = {}

    def add(self, holder: _H) -> None:
        """Add a holder, once."""
        if holder.used not in self._by_use:
            self._by_use[holder.used] = holder
            insort(self._uses, holder.used)

    def discard(self, holder: _H) -> None:
        """Remove a holder; an unknown one is ignored."""
        if self._by_use.pop(holder.used, None) is not None:
            del self._uses[bisect_left(self._uses, holder.used)]

    def first(self) -> _H | None:
        """Return the least recently used holder."""
        return self._by_use[self._uses[0]] if self._uses else None

    def holders(self) -> list[_H]:
        """Return all, the least recently used one first."""
        return [self._by_use[used] for used in self._uses]


class ReliefOrder:
    """What can be freed, in the order in which it is freed, and how many bytes that is.

    A holder changes only in ``changing``.

    Args:
        block_bytes: Bytes of the full-attention layers in a block.
    """

    def __init__(self, index: ContextIndex, *, block_tokens: int, block_bytes: int) -> None:
        self._index = index
        self._block_tokens = block_tokens
        self._block_bytes = block_bytes
        self.checkpoints: dict[CacheCheckpoint, None] = {}
        #: All contexts, with the checkpoints that were made for them.
        self.ends_of: dict[Context, dict[CacheCheckpoint, None]] = {}
        #: Bytes of all holders.
        self.bytes_by: dict[Standing, int] = dict.fromkeys(Standing, 0)
        both = (False, True)
        #: By whether the disk has them.
        self._ends = {saved: LeastRecent[CacheCheckpoint]() for saved in both}
        self._contexts = {saved: LeastRecent[Context]() for saved in both}
        #: Those that may share their first block.
        self._sharing = LeastRecent[Context]()

    def __contains__(self, holder: Holder) -> bool:
        return holder in (self.checkpoints if isinstance(holder, CacheCheckpoint) else self.ends_of)

    def add(self, holder: Holder) -> None:
        """Add a new context, or a checkpoint of no context yet."""
        if isinstance(holder, CacheCheckpoint):
            self.checkpoints[holder] = None
        else:
            self.ends_of[holder] = {}
        self._put(holder)

    def remove(self, holder: Holder) -> None:
        """Remove a context or a checkpoint."""
        if isinstance(holder, CacheCheckpoint):
            for context in list(holder.contexts):
                self.part(context, holder)
        else:
            for checkpoint in list(self.ends_of[holder]):
                self.part(holder, checkpoint)
        self._take(holder)
        if isinstance(holder, CacheCheckpoint):
            del self.checkpoints[holder]
        else:
            del self.ends_of[holder]

    def join(self, context: Context, checkpoint: CacheCheckpoint) -> None:
        """Note that a checkpoint was made for a context."""
        self.part(context, checkpoint)
        with self.changing(checkpoint):
            checkpoint.contexts.add(context)
            checkpoint.busy += not context.is_idle
            self.ends_of[context][checkpoint] = None

    def part(self, context: Context, checkpoint: CacheCheckpoint) -> None:
        """Note that a context does not need a checkpoint any more."""
        if context in checkpoint.contexts:
            with self.changing(checkpoint):
                checkpoint.contexts.remove(context)
                checkpoint.busy -= not context.is_idle
                del self.ends_of[context][checkpoint]

    @contextmanager
    def changing(self, *holders: Holder) -> Iterator[None]:
        """Keep the order right while holders change; unknown ones are ignored."""
        known = [one for one in holders if one in self]
        contexts = [one for one in known if isinstance(one, Context)]
        # The standing of a checkpoint depends on that of its contexts.
        every = dict.fromkeys([*known, *(end for one in contexts for end in self.ends_of[one])])
        for holder in every:
            self._take(holder)
        self._count_busy(contexts, -1)
        yield
        self._count_busy(contexts, 1)
        for holder in every:
            self._put(holder)

    def _count_busy(self, contexts: Iterable[Context], by: int) -> None:
        for context in contexts:
            if not context.is_idle:
                for checkpoint in self.ends_of[context]:
                    checkpoint.busy += by

    def _put(self, holder: Holder) -> None:
        self.bytes_by[standing_of(holder)] += holder.size_bytes
        if isinstance(holder, CacheCheckpoint):
            if not holder.users:
                self._ends[holder.is_saved].add(holder)
        elif holder.is_idle:
            self._contexts[holder.is_saved].add(holder)
            self.compare(holder)

    def _take(self, holder: Holder) -> None:
        """Take a holder out that has not changed since it was put in."""
        self.bytes_by[standing_of(holder)] -= holder.size_bytes
        if isinstance(holder, CacheCheckpoint):
            if not holder.users:
                self._ends[holder.is_saved].discard(holder)
        elif holder.is_idle:
            self._contexts[holder.is_saved].discard(holder)
            self._sharing.discard(holder)

    def compare(self, context: Context) -> None:
        """Look again whether a context shares its first block, which another one may hold now."""
        if context.is_idle and self._index.shares_start(context):
            self._sharing.add(context)

    def reclaimable_bytes(self, *, unsaved: bool) -> int:
        """Return how many bytes could be freed at once.

        Args:
            unsaved: Whether what the disk does not have may be freed.
        """
        return self.bytes_by[Standing.SAVED] + self.bytes_by[Standing.UNSAVED] * unsaved

    def next(self, needed_bytes: int, *, unsaved: bool) -> Relief | None:
        """Return what to free next; ``None`` if nothing can be freed.

        Args:
            unsaved: Whether contexts and checkpoints that the disk does not have may be freed.
        """
        checkpoint = _least_recent(self._ends, unsaved=unsaved)
        if checkpoint is not None:
            return DropCheckpoint(checkpoint)
        shared = self._shared()
        if shared is not None:
            return shared
        context = _least_recent(self._contexts, unsaved=unsaved)
        return None if context is None else self._shortened(context, needed_bytes)

    def check_integrity(self) -> None:
        """Assert that the order is that of the holders; for tests."""
        again = ReliefOrder(
            self._index, block_tokens=self._block_tokens, block_bytes=self._block_bytes
        )
        for context, ends in self.ends_of.items():
            assert all(context in one.contexts for one in ends), "a checkpoint of others"
            again.add(context)
        for checkpoint in self.checkpoints:
            busy = [not one.is_idle for one in checkpoint.contexts]
            assert checkpoint.busy == sum(busy), "its contexts are not so busy"
            assert all(checkpoint in self.ends_of[one] for one in checkpoint.contexts), "not theirs"
            again.add(checkpoint)
        assert self.bytes_by == again.bytes_by, "the accounts differ from the holders"
        known = set(self._sharing.holders())
        assert known.issuperset(again._sharing.holders()), "a shared beginning is overlooked"
        for own, other in zip(self._orders(), again._orders(), strict=True):
            assert own.holders() == other.holders(), "the order is wrong"

    def _orders(self) -> list[LeastRecent[Any]]:
        every = self._ends, self._contexts
        return [one for orders in every for one in orders.values()]

    def _shared(self) -> Relief | None:
        """Return what another context holds too of the least recently used one that shares."""
        while (context := self._sharing.first()) is not None:
            shared = self._index.shared_blocks(context)
            if shared:
                start = context.start + shared * self._block_tokens
                if start >= len(context.token_ids):
                    return Evict(context)
                return TrimStart(context, start)
            self._sharing.discard(context)  # the other one was freed
        return None

    def _shortened(self, context: Context, needed_bytes: int) -> Relief:
        """Trim the end of a context, or evict it where little would stay."""
        held = len(context.names) - context.start // self._block_tokens
        wanted = -(-needed_bytes // self._block_bytes) if self._block_bytes else held
        kept = held - max(wanted, held // TRIMMED_SHARE + 1)
        if kept < KEPT_BLOCKS_MIN:
            return Evict(context)
        return TrimEnd(context, context.start + kept * self._block_tokens)


def standing_of(holder: Holder) -> Standing:
    """Return whether the memory of a holder can be freed at once."""
    if isinstance(holder, Context) and holder.is_running:
        return Standing.LIVE
    if holder.users:
        waits = isinstance(holder, CacheCheckpoint) and holder.contexts and not holder.busy
        return Standing.UNSAVED if waits else Standing.BUSY
    return Standing.SAVED if holder.is_saved else Standing.UNSAVED


def _least_recent(orders: Mapping[bool, LeastRecent[_H]], *, unsaved: bool) -> _H | None:
    """Return the least recently used holder, of those that the disk has unless ``unsaved``."""
    saved = orders[True].first()
    other = orders[False].first() if unsaved else None
    if saved is None or other is None:
        return saved or other
    return min(saved, other, key=lambda one: one.used)
