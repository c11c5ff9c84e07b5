"""Finds the longest prefix of a prompt among stored blocks.

The index stores names and tokens, not locations. The owner of the blocks inserts each block that it
adds and removes each block that it drops. The engine has one index for the blocks in memory; the
block store has its own index of the files on disk (ADR 0009).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from domain.kv.hashing import ID_BYTES, BlockHash, BlockHasher, pack_ids
from domain.kv.siblings import Siblings
from domain.kv.spec import ModelCacheSpec

#: Most blocks of an index, at about 1.6 kB each.
INDEXED_BLOCKS_MAX = 131_072


@dataclass(frozen=True, slots=True, kw_only=True)
class TailMatch:
    """A stored block, whole or tail, whose first tokens continue the matched prefix.

    Attributes:
        hash: Its name.
        stored_tokens: Its length.
        usable_tokens: Number of its first tokens that the prompt can reuse, at least one.
    """

    hash: BlockHash
    stored_tokens: int
    usable_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """The reusable prefix of a prompt.

    Attributes:
        full: Names of the whole blocks at its start, in order.
        tail: The partly usable block after them, if there is one.
        tokens: Length of the prefix in tokens.
    """

    full: tuple[BlockHash, ...]
    tail: TailMatch | None
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDivergence:
    """Where a prompt diverges from the indexed contexts.

    Attributes:
        token_index: Index of the first token of the prompt that is not indexed.
        contradicted: Whether an indexed context has another token there; otherwise it ends there.
    """

    token_index: int
    contradicted: bool


class _Entry(NamedTuple):
    parent: BlockHash | None
    packed: bytes


class PrefixIndex:
    """The indexed blocks of one model; not thread-safe, used only by the thread that admits.

    Beyond ``blocks_max`` the index removes the least recently matched or inserted block. A block
    without an indexed parent stays, but matches only once the parent is inserted again.

    Args:
        fingerprint: Fingerprint of the model, which is part of the names.
        spec: Length of a block, and which blocks can be cut.
        blocks_max: Most blocks of the index.
    """

    def __init__(
        self, fingerprint: str, spec: ModelCacheSpec, *, blocks_max: int = INDEXED_BLOCKS_MAX
    ) -> None:
        assert blocks_max > 0, "an index holds at least one block"
        self._hasher = BlockHasher(fingerprint)
        self._block_tokens = spec.block_tokens
        self._cut_tokens_max = spec.cut_tokens_max
        self._blocks_max = blocks_max
        self._entries: OrderedDict[BlockHash, _Entry] = OrderedDict()
        self._children: dict[BlockHash | None, Siblings] = {}

    def __len__(self) -> int:
        """Return the number of indexed blocks."""
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        """Return whether the block of that name is indexed."""
        return name in self._entries

    def insert(
        self, name: BlockHash, parent: BlockHash | None, token_ids: Sequence[int]
    ) -> BlockHash | None:
        """Add a block, whole or tail; an indexed block becomes the most recent.

        Args:
            name: Its name, which the caller has checked against the content.
            parent: Name of the block before it; ``None`` at the start of a context.
            token_ids: Its tokens.

        Returns:
            The block that was removed to make room, if any.
        """
        packed = pack_ids(token_ids)
        assert len(packed) <= self._block_tokens * ID_BYTES, "more tokens than a block holds"
        assert self._hasher.of_packed(parent, packed) == name, "the name does not match the tokens"
        if name in self._entries:
            self._entries.move_to_end(name)
            return None
        removed = self._make_room()
        self._entries[name] = _Entry(parent, packed)
        siblings = self._children.setdefault(parent, Siblings())
        siblings.add(packed, name, can_be_cut=self._can_be_cut(packed))
        return removed

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
        """Return the longest indexed prefix of ``token_ids``; its blocks become the most recent.

        The last token of a prompt must always be computed, because the answer starts from its
        logits: pass ``prompt[:-1]``.
        """
        full, wanted = self._walk(pack_ids(token_ids))
        parent = full[-1] if full else None
        siblings = self._children.get(parent, Siblings())
        tail = siblings.usable(wanted)
        if tail is not None:
            self._entries.move_to_end(tail.hash)
        for name in reversed(full):  # the end of a context is evicted before its start
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
        """Return where ``token_ids`` diverge from the most similar indexed context.

        Unlike ``longest_match`` it counts tokens of blocks that cannot be cut, and it does not
        change the order of eviction. ``None`` means that all of the tokens are indexed.
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
        """Return the indexed whole blocks, and the packed ids of the next block."""
        full: list[BlockHash] = []
        for name in self._hasher.chain(packed, self._block_tokens):
            if name not in self._entries:
                break
            full.append(name)
        step = self._block_tokens * ID_BYTES
        return tuple(full), packed[len(full) * step : (len(full) + 1) * step]
