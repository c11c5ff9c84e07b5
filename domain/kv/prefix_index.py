"""Finds the longest prefix of a prompt among stored blocks.

The index has names and tokens, not locations: the owner of the blocks inserts those that it adds
and removes those that it drops. The engine has one for the blocks in memory; the block store finds
blocks on disk by its own index of file names (ADR 0009).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from domain.kv.hashing import ID_BYTES, BlockHash, BlockHasher, pack_ids
from domain.kv.siblings import Siblings
from domain.kv.spec import ModelCacheSpec

#: Blocks that an index remembers, at about 1.6 kB each.
INDEXED_BLOCKS_MAX = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class TailMatch:
    """A stored block, whole or tail, that starts as the prompt goes on.

    Attributes:
        hash: Its name.
        stored_tokens: Its length.
        usable_tokens: How many of its first tokens serve the prompt, at least one.
    """

    hash: BlockHash
    stored_tokens: int
    usable_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What is known of a prompt.

    Attributes:
        full: Names of the whole blocks that it starts with, in order.
        tail: What follows them, if anything does.
        tokens: Tokens that need not be computed.
    """

    full: tuple[BlockHash, ...]
    tail: TailMatch | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDivergence:
    """Where a prompt leaves what is known.

    Attributes:
        token_index: Index of its first token that is not known to follow.
        contradicted: Whether another token is known there; else what is known just ends.
    """

    token_index: int
    contradicted: bool


class _Entry(NamedTuple):
    parent: BlockHash | None
    packed: bytes


class PrefixIndex:
    """The known blocks of one model; not thread-safe, it belongs to the thread that admits.

    Memory is bounded: beyond ``blocks_max`` the least recently matched or inserted block is
    forgotten. A block whose parent is not known is kept but cannot be matched until the parent is
    known again.

    Args:
        fingerprint: What the blocks were computed with, as in their names.
        spec: Length of a block, and which blocks can be cut.
        blocks_max: How many blocks are remembered.
    """

    def __init__(
        self, fingerprint: str, spec: ModelCacheSpec, *, blocks_max: int = INDEXED_BLOCKS_MAX
    ) -> None:
        assert blocks_max > 0, "an index remembers something"
        self._hasher = BlockHasher(fingerprint)
        self._block_tokens = spec.block_tokens
        self._cut_tokens_max = spec.cut_tokens_max
        self._blocks_max = blocks_max
        self._entries: OrderedDict[BlockHash, _Entry] = OrderedDict()
        self._children: dict[BlockHash | None, Siblings] = {}

    def __len__(self) -> int:
        """Return how many blocks are known."""
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        """Return whether the block of that name is indexed."""
        return name in self._entries

    def insert(
        self, name: BlockHash, parent: BlockHash | None, token_ids: Sequence[int]
    ) -> BlockHash | None:
        """Learn that a block, whole or tail, exists; one that is known becomes the most recent.

        Args:
            name: Its name, which the caller has checked against the content.
            parent: Name of the block before it; ``None`` at the start of a context.
            token_ids: Its tokens.

        Returns:
            The block that was forgotten for it, if one was.
        """
        packed = pack_ids(token_ids)
        assert len(packed) <= self._block_tokens * ID_BYTES, "no block holds more"
        assert self._hasher.of_packed(parent, packed) == name, "the name is not of this content"
        if name in self._entries:
            self._entries.move_to_end(name)
            return None
        forgotten = self._make_room()
        self._entries[name] = _Entry(parent, packed)
        siblings = self._children.setdefault(parent, Siblings())
        siblings.add(packed, name, can_be_cut=self._can_be_cut(packed))
        return forgotten

    def remove(self, name: BlockHash) -> bool:
        """Remove a block that no longer exists; return whether it was indexed."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return False
        siblings = self._children[entry.parent]
        siblings.remove(entry.packed, name, can_be_cut=self._can_be_cut(entry.packed))
        if not siblings:
            del self._children[entry.parent]
        return True

    def longest_match(self, token_ids: Sequence[int]) -> Match:
        """Return the known blocks that save most of computing ``token_ids``.

        The last token of a prompt must be computed whatever is known, because the answer starts
        from its logits: pass ``prompt[:-1]``. The blocks matched become the most recent.
        """
        full, wanted = self._walk(pack_ids(token_ids))
        parent = full[-1] if full else None
        siblings = self._children.get(parent, Siblings())
        tail = siblings.usable(wanted)
        if tail is not None:
            self._entries.move_to_end(tail.hash)
        for name in reversed(full):  # the start of a context outlives its end
            self._entries.move_to_end(name)
        reused = 0 if tail is None else tail.shared_tokens
        return Match(
            full=full,
            tail=None
            if tail is None
            else TailMatch(
                hash=tail.hash, stored_tokens=tail.stored_tokens, usable_tokens=tail.shared_tokens
            ),
            tokens=len(full) * self._block_tokens + reused,
        )

    def nearest_divergence(self, token_ids: Sequence[int]) -> BlockDivergence | None:
        """Return where ``token_ids`` leave the known context that goes with them furthest.

        Unlike ``longest_match`` it counts tokens of blocks that cannot be cut, and it changes
        nothing. ``None`` means that all of the tokens are known.
        """
        full, wanted = self._walk(pack_ids(token_ids))
        parent = full[-1] if full else None
        nearest = self._children.get(parent, Siblings()).nearest(wanted)
        shared, stored = (0, 0) if nearest is None else nearest[:2]
        token_index = len(full) * self._block_tokens + shared
        if token_index == len(token_ids):
            return None
        return BlockDivergence(token_index=token_index, contradicted=shared < stored)

    def _make_room(self) -> BlockHash | None:
        if len(self._entries) < self._blocks_max:
            return None
        oldest = next(iter(self._entries))
        self.remove(oldest)
        return oldest

    def _can_be_cut(self, packed: bytes) -> bool:
        return len(packed) <= self._cut_tokens_max * ID_BYTES

    def _walk(self, packed: bytes) -> tuple[tuple[BlockHash, ...], bytes]:
        """Return the known whole blocks, and the ids that would make up the next block."""
        known: list[BlockHash] = []
        for name in self._hasher.chain(packed, self._block_tokens):
            if name not in self._entries:
                break
            known.append(name)
        step = self._block_tokens * ID_BYTES
        return tuple(known), packed[len(known) * step : (len(known) + 1) * step]
