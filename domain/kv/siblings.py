"""The blocks known to follow one block, searched by how far they agree with some tokens."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from domain.kv.hashing import ID_BYTES, BlockHash


class Sibling(NamedTuple):
    """A block; the order of blocks is that of their packed ids, compared as bytes."""

    packed: bytes
    hash: BlockHash


class Agreement(NamedTuple):
    """A block and how many of its first tokens are those looked for."""

    shared_tokens: int
    stored_tokens: int
    hash: BlockHash


@dataclass(slots=True)
class Siblings:
    """All known blocks after one parent.

    In a sorted list, the entry that shares the longest start with some tokens stands right before
    or right after the place where these would stand, so searches are logarithmic.

    Attributes:
        cuttable: Blocks that serve with their first tokens alone, sorted.
        uncuttable: Blocks that serve as a whole or not at all, sorted.
    """

    cuttable: list[Sibling] = field(default_factory=list)
    uncuttable: list[Sibling] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.cuttable or self.uncuttable)

    def add(self, packed: bytes, name: BlockHash, *, can_be_cut: bool) -> None:
        """Add a block by its tokens."""
        insort(self.cuttable if can_be_cut else self.uncuttable, Sibling(packed, name))

    def remove(self, packed: bytes, name: BlockHash, *, can_be_cut: bool) -> None:
        """Remove a block that ``add`` added."""
        blocks = self.cuttable if can_be_cut else self.uncuttable
        place = bisect_left(blocks, Sibling(packed, name))
        assert blocks[place].hash == name, "only what is there can be removed"
        del blocks[place]

    def usable(self, wanted: bytes) -> Agreement | None:
        """Return the block that serves most of ``wanted``, which is at most a block long."""
        found = [_agreement(block, wanted) for block in _around(self.cuttable, wanted)]
        found += _longest_start(self.uncuttable, wanted)
        best = max(found, default=None)
        return best if best is not None and best.shared_tokens else None

    def nearest(self, wanted: bytes) -> Agreement | None:
        """Return the block that agrees furthest with ``wanted``, of several the longest."""
        found = (
            _agreement(block, wanted)
            for blocks in (self.cuttable, self.uncuttable)
            for block in _around(blocks, wanted)
        )
        return max(found, default=None)


def _agreement(block: Sibling, wanted: bytes) -> Agreement:
    shared = _common_tokens(block.packed, wanted)
    return Agreement(shared, len(block.packed) // ID_BYTES, block.hash)


def _around(blocks: list[Sibling], wanted: bytes) -> list[Sibling]:
    """Return the entries around the place of ``wanted``, one of which shares most with it."""
    place = bisect_left(blocks, (wanted,))
    return blocks[max(0, place - 1) : place + 1]


def _longest_start(blocks: list[Sibling], wanted: bytes) -> Iterator[Agreement]:
    """Yield the longest entry that ``wanted`` starts with.

    It stands at or before the place of ``wanted``, and all between the two start with it too. So if
    the entry right before is not the one, the one is a start of what that entry and ``wanted``
    share.
    """
    while wanted:
        place = bisect_left(blocks, (wanted,))
        if place < len(blocks) and blocks[place].packed == wanted:
            yield _agreement(blocks[place], wanted)
            return
        if place == 0:
            return
        before = _agreement(blocks[place - 1], wanted)
        if before.shared_tokens == before.stored_tokens:
            yield before
            return
        wanted = wanted[: before.shared_tokens * ID_BYTES]


def _common_tokens(one: bytes, other: bytes) -> int:
    """Return how many tokens both start with; comparing slices beats comparing tokens."""
    low, high = 0, min(len(one), len(other)) // ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        end = middle * ID_BYTES
        if one[:end] == other[:end]:
            low = middle
        else:
            high = middle - 1
    return low
