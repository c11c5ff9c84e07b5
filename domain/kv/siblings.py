"""The indexed blocks after one parent, searched for the longest common start with some tokens."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from domain.kv.hashing import ID_BYTES, BlockHash


class Sibling(NamedTuple):
    """A block; blocks are sorted by their packed token ids, compared as bytes."""

    packed: bytes
    hash: BlockHash


class Agreement(NamedTuple):
    """A block and the number of its first tokens that equal the wanted tokens."""

    shared_tokens: int
    stored_tokens: int
    hash: BlockHash


@dataclass(slots=True)
class Siblings:
    """All indexed blocks after one parent.

    Both lists are sorted. The entry with the longest common start is directly before or after the
    position at which the wanted tokens would be inserted, so a search takes logarithmic time.

    Attributes:
        cuttable: Blocks whose first tokens can be reused alone.
        uncuttable: Blocks that can be reused only as a whole.
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
        assert blocks[place].hash == name, "the block is not among the siblings"
        del blocks[place]

    def usable(self, wanted: bytes) -> Agreement | None:
        """Return the block that covers most of ``wanted``, which has at most a block of tokens."""
        found = [_agreement(block, wanted) for block in _around(self.cuttable, wanted)]
        found += _longest_start(self.uncuttable, wanted)
        best = max(found, default=None)
        return best if best is not None and best.shared_tokens else None

    def nearest(self, wanted: bytes) -> Agreement | None:
        """Return the block with the longest common start; of several, the longest block."""
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
    """Return the entries before and after the position of ``wanted``; one has the longest match."""
    place = bisect_left(blocks, (wanted,))
    return blocks[max(0, place - 1) : place + 1]


def _longest_start(blocks: list[Sibling], wanted: bytes) -> Iterator[Agreement]:
    """Yield the longest entry that ``wanted`` starts with.

    That entry is at or before the position of ``wanted``, and every entry between the two starts
    with it too. If the entry directly before is not the result, the result is a prefix of the
    common start of that entry and ``wanted``, so the search repeats with this common start.
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
    """Return the number of common first tokens; a binary search over slices is fast."""
    low, high = 0, min(len(one), len(other)) // ID_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        end = middle * ID_BYTES
        if one[:end] == other[:end]:
            low = middle
        else:
            high = middle - 1
    return low
