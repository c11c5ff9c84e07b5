"""The contexts in memory, and how much of a prompt they hold.

A context is the tokens of one sequence: a row that runs, or a segment that is parked. The index
stores names and tokens, not arrays. A context may lack its beginning: then another context or the
disk holds the blocks before ``start``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from domain.kv.hashing import BlockHash, BlockHasher, common_tokens, pack_ids


@dataclass(slots=True, eq=False, kw_only=True)
class Context:
    """A row or a segment. ``BlockPool`` writes its state; others write its tokens and its tail.

    Attributes:
        token_ids: Ids of all its tokens, those before ``start`` included. A running row appends to
            the list.
        names: Hashes of its whole blocks, from the beginning of the context.
        start: Its first token whose keys and values it holds; at a block boundary.
        slots: Tokens from ``start`` on for which memory is reserved.
        users: Copies that are being made from it; while there are any, it is not changed.
        is_saved: Whether the disk has all of it, or has it in its write queue.
        is_forgotten: Whether its blocks were deleted on request; it is not saved any more.
        tail: Name and end of the last partial block of it on the disk.
        used: Number of its last use; a higher number is later.
    """

    token_ids: list[int] = field(default_factory=list)
    names: list[BlockHash] = field(default_factory=list)
    start: int = 0
    slots: int = 0
    size_bytes: int = 0
    is_running: bool = True
    users: int = 0
    is_saved: bool = False
    is_forgotten: bool = False
    tail: tuple[BlockHash, int] | None = None
    used: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing uses it."""
        return not self.is_running and not self.users


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens ``start`` to ``stop`` of a prompt, and the context that holds them.

    ``context`` is ``None`` where only the disk has them.
    """

    start: int
    stop: int
    context: Context | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownPrefix:
    """The beginning of a prompt that memory and disk have.

    Attributes:
        pieces: Where its tokens are, in order and without gaps.
    """

    names: tuple[BlockHash, ...] = ()
    pieces: tuple[Piece, ...] = ()
    tokens: int = 0

    def cut(self, tokens: int) -> tuple[Piece, ...]:
        """Return the pieces of the first ``tokens``."""
        assert tokens <= self.tokens, "more than is known"
        return tuple(
            Piece(piece.start, min(piece.stop, tokens), piece.context)
            for piece in self.pieces
            if piece.start < tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStats:
    """The accounts at one instant.

    Attributes:
        budget_bytes: Limit of all contexts, checkpoints and copies together.
        used_bytes: Bytes that contexts and checkpoints reserve.
        blocks: Whole blocks that they hold; a block that two contexts hold counts twice.
        evicted_blocks: Blocks ever freed for other contexts.
        held_bytes: The part of ``used_bytes`` that cannot be freed at once.
        live_bytes: The part of ``used_bytes`` that running sequences reserve.
        ceiling_bytes: Most memory that weights, contexts and steps take.
    """

    budget_bytes: int
    used_bytes: int
    blocks: int
    evicted_blocks: int
    held_bytes: int = 0
    live_bytes: int = 0
    weights_bytes: int = 0
    ceiling_bytes: int = 0

    @property
    def fill(self) -> float:
        """The share of the budget that cannot be freed at once."""
        return self.held_bytes / self.budget_bytes if self.budget_bytes else 0.0


def nowhere(name: BlockHash) -> bool:
    """Return that no disk has the block."""
    del name
    return False


class ContextIndex:
    """Finds the contexts that hold a block. Not thread-safe."""

    def __init__(self, hasher: BlockHasher, block_tokens: int) -> None:
        self._hasher = hasher
        self._block_tokens = block_tokens
        self._contexts: dict[Context, None] = {}
        self._holders: dict[BlockHash, dict[Context, None]] = {}
        #: Whole blocks that the contexts hold; one that two of them hold counts twice.
        self.blocks = 0

    def __iter__(self) -> Iterator[Context]:
        return iter(self._contexts)

    def __len__(self) -> int:
        return len(self._contexts)

    def __contains__(self, name: object) -> bool:
        """Return whether a context holds the block of that name."""
        return name in self._holders

    def add(self, context: Context) -> None:
        """Add a context with the blocks that it holds."""
        self._contexts[context] = None
        for name in self._held(context):
            self._hold(context, name)

    def remove(self, context: Context) -> None:
        """Remove a context; an unknown one is ignored."""
        self._drop(context, self._held(context))
        self._contexts.pop(context, None)

    def append(self, context: Context, name: BlockHash) -> None:
        """Add the next whole block of a context."""
        context.names.append(name)
        if context in self._contexts:
            self._hold(context, name)

    def trim_start(self, context: Context, start: int) -> None:
        """Remove the blocks before ``start``, a block boundary."""
        size = self._block_tokens
        assert context.start <= start <= len(context.names) * size, "whole blocks are trimmed"
        self._drop(context, context.names[context.start // size : start // size])
        context.start = start

    def trim_end(self, context: Context, tokens: int) -> None:
        """Remove the tokens from ``tokens`` on."""
        blocks = tokens // self._block_tokens
        self._drop(context, context.names[max(blocks, context.start // self._block_tokens) :])
        del context.names[blocks:]
        del context.token_ids[tokens:]
        if context.tail is not None and context.tail[1] > tokens:
            context.tail = None  # other tokens may follow here

    def holder(self, name: BlockHash) -> Context | None:
        """Return a context that holds the block of that name."""
        return next(iter(self._holders.get(name, {})), None)

    def shared_blocks(self, context: Context) -> int:
        """Return how many of the first blocks that a context holds another context holds too."""
        count = 0
        for name in self._held(context):
            if not self._is_shared(context, name):
                break
            count += 1
        return count

    def shares_start(self, context: Context) -> bool:
        """Return whether another context holds the first block that a context holds."""
        first = context.start // self._block_tokens
        return first < len(context.names) and self._is_shared(context, context.names[first])

    def _is_shared(self, context: Context, name: BlockHash) -> bool:
        holders = self._holders.get(name, {})
        return context in holders and len(holders) > 1

    def find(
        self, token_ids: Sequence[int], on_disk: Callable[[BlockHash], bool] = nowhere
    ) -> KnownPrefix:
        """Return the longest beginning of ``token_ids`` that memory and disk have.

        Tokens after the last whole block count where a context holds them. The context that holds
        most of the end is preferred for all of its blocks, so that it can be adopted.
        """
        names: list[BlockHash] = []
        in_memory = 0
        for name in self._hasher.chain(pack_ids(token_ids), self._block_tokens):
            if name in self._holders:
                in_memory = len(names) + 1
            elif not on_disk(name):
                break
            names.append(name)
        best, tail = self._best(token_ids, names[:in_memory])
        pieces = self._pieces(names, best if in_memory else None)
        tokens = len(names) * self._block_tokens
        if in_memory == len(names) and tail:
            pieces.append(Piece(tokens, tokens + tail, best))
            tokens += tail
        return KnownPrefix(names=tuple(names), pieces=_joined(pieces), tokens=tokens)

    def diverged_at(self, token_ids: Sequence[int]) -> int | None:
        """Return the index of the first token that differs from every context in memory.

        ``None`` if the tokens agree with a context, or no context has tokens after their common
        beginning.
        """
        names = []
        for name in self._hasher.chain(pack_ids(token_ids), self._block_tokens):
            if name not in self._holders:
                break
            names.append(name)
        best, tail = self._best(token_ids, names)
        at = len(names) * self._block_tokens + tail
        if best is None or at == len(token_ids):
            return None
        return at if len(best.token_ids) > at else None

    def _held(self, context: Context) -> list[BlockHash]:
        return context.names[context.start // self._block_tokens :]

    def _hold(self, context: Context, name: BlockHash) -> None:
        self._holders.setdefault(name, {})[context] = None
        self.blocks += 1

    def _drop(self, context: Context, names: Sequence[BlockHash]) -> None:
        if context not in self._contexts:
            return  # a forgotten context has left the index
        self.blocks -= len(names)
        for name in names:
            holders = self._holders[name]
            del holders[context]
            if not holders:
                del self._holders[name]

    def _best(
        self, token_ids: Sequence[int], names: Sequence[BlockHash]
    ) -> tuple[Context | None, int]:
        """Return the context that holds the last block and most of the tokens after it."""
        start = len(names) * self._block_tokens
        wanted = token_ids[start : start + self._block_tokens]
        holders = self._holders[names[-1]] if names else self._contexts
        best: Context | None = None
        best_key = (-1, 0, -1)  # of none
        for context in holders:
            if context.start > start or _is_no_better(context, start, wanted, best_key):
                continue
            held = context.token_ids[start : start + len(wanted)]
            common = common_tokens(held, wanted)
            continues = len(context.token_ids) > start + common
            key = (common, int(continues), -context.start)
            if key > best_key:
                best, best_key = context, key
        return best, max(0, best_key[0])

    def _pieces(self, names: Sequence[BlockHash], preferred: Context | None) -> list[Piece]:
        size = self._block_tokens
        current = preferred
        pieces = []
        for at, name in enumerate(names):
            holders = self._holders.get(name, {})
            if preferred in holders:
                current = preferred
            elif current not in holders:
                current = max(holders, key=lambda one: len(one.names), default=None)
            pieces.append(Piece(at * size, (at + 1) * size, current))
        return pieces


def _is_no_better(
    context: Context, start: int, wanted: Sequence[int], best_key: tuple[int, int, int]
) -> bool:
    """Return whether one token shows that a context has no more of ``wanted`` than the best one.

    A prompt that begins like no other is compared with all contexts, so that has to be quick.
    """
    common, continues, before = best_key
    if not continues or before < -context.start:
        return False
    if common == len(wanted) or len(context.token_ids) <= start + common:
        return True
    return context.token_ids[start + common] != wanted[common]


def _joined(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Join neighbours of one context."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].context is piece.context:
            joined[-1] = Piece(joined[-1].start, piece.stop, piece.context)
        else:
            joined.append(piece)
    return tuple(joined)
