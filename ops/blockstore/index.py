"""Which blocks there are and in which order they would go. Pure; its owner holds the lock."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter

from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import BlockInfo

_USED = attrgetter("used_ns")


class BlockIndex:
    """Blocks in order of use, and the blocks that follow each.

    Whoever uses a block uses all before it, so a block never goes before those that build on it:
    using one renews its ancestors after itself, and the least recently used is always a leaf.
    """

    def __init__(self) -> None:
        self._blocks: OrderedDict[BlockHash, BlockInfo] = OrderedDict()
        # Tuples, not sets: nearly all have one member, and there may be many.
        self._children: dict[BlockHash | str, tuple[BlockHash, ...]] = {}
        self._pins: Counter[BlockHash] = Counter()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[BlockInfo]:
        """Yield the blocks, least recently used first."""
        return iter(self._blocks.values())

    def get(self, block_hash: BlockHash) -> BlockInfo | None:
        """Return a block, if it is there."""
        return self._blocks.get(block_hash)

    def children(self, parent: BlockHash | None, model: str) -> list[BlockInfo]:
        """Return the blocks of ``model`` that follow ``parent``, or the first ones of all."""
        return [self._blocks[each] for each in self._children.get(parent or model, ())]

    def add(self, block: BlockInfo) -> None:
        """Add a block as the most recently used, or replace what is known of it."""
        self.remove(block.hash)
        self._blocks[block.hash] = block
        key = block.parent or block.model
        self._children[key] = (*self._children.get(key, ()), block.hash)
        self.size_bytes += block.size_bytes

    def remove(self, block_hash: BlockHash) -> BlockInfo | None:
        """Forget a block, if it is there; its pins stay with the name."""
        block = self._blocks.pop(block_hash, None)
        if block is not None:
            key = block.parent or block.model
            left = tuple(each for each in self._children[key] if each != block_hash)
            if left:
                self._children[key] = left
            else:
                del self._children[key]
            self.size_bytes -= block.size_bytes
        return block

    def touch(self, hashes: Sequence[BlockHash], used_ns: int) -> list[BlockInfo]:
        """Make blocks and their ancestors the most recently used.

        Args:
            hashes: Blocks, those of one context in its order.
            used_ns: Now.

        Returns:
            The last block of each line: the order of all others follows from theirs.
        """
        seen: set[BlockHash] = set()
        ends = []
        for block_hash in reversed(hashes):
            if block_hash in seen or block_hash not in self._blocks:
                continue
            self._blocks[block_hash] = self._blocks[block_hash]._replace(used_ns=used_ns)
            ends.append(self._blocks[block_hash])
            for each in self._line(block_hash):
                seen.add(each)
                self._blocks.move_to_end(each)
        return ends

    def fill(self, blocks: Iterable[BlockInfo]) -> None:
        """Start over with these blocks, ordered by the last use of each or of what follows it."""
        there = {block.hash: block for block in blocks}
        self.size_bytes = sum(block.size_bytes for block in there.values())
        children: dict[BlockHash | str, list[BlockHash]] = {}
        for block in there.values():
            children.setdefault(block.parent or block.model, []).append(block.hash)
        self._children = {key: tuple(each) for key, each in children.items()}
        newest_first: dict[BlockHash, BlockInfo] = {}
        for block in sorted(there.values(), key=_USED, reverse=True):
            line = []
            at: BlockInfo | None = block
            # Those before it that a later use has not placed yet; a ring of parents ends there too.
            while at is not None and at.hash not in newest_first:
                line.append(at)
                newest_first[at.hash] = at
                at = there.get(at.parent) if at.parent else None
            if len(line) > 1:
                for each in reversed(line):
                    newest_first[each.hash] = newest_first.pop(each.hash)
        self._blocks = OrderedDict(reversed(newest_first.items()))

    def victims(self, free_bytes: int, keep: Collection[BlockHash] = ()) -> list[BlockInfo] | None:
        """Return which blocks to delete to free that much, oldest first.

        Args:
            free_bytes: How much is needed.
            keep: Blocks that must stay beside the pinned ones.

        Returns:
            ``None`` if it cannot be freed.
        """
        found: list[BlockInfo] = []
        for block in self._blocks.values():
            if free_bytes <= 0:
                break
            if block.hash not in self._pins and block.hash not in keep:
                found.append(block)
                free_bytes -= block.size_bytes
        return found if free_bytes <= 0 else None

    def line(self, block_hash: BlockHash) -> list[BlockHash]:
        """Return a block and its ancestors as far as they are there, nearest first."""
        return list(self._line(block_hash))

    def orphans(self) -> list[BlockInfo]:
        """Return blocks that no context can reach, because one before them is gone."""
        reached: dict[BlockHash, bool] = {}
        for block in self._blocks.values():
            line = []
            for each in self._line(block.hash):
                if each in reached:
                    break
                line.append(each)
            for each in reversed(line):
                parent = self._blocks[each].parent
                reached[each] = not parent or reached.get(parent, False)
        return [block for block in self._blocks.values() if not reached[block.hash]]

    def pin(self, hashes: Iterable[BlockHash]) -> None:
        """Keep blocks from being victims; each call wants its own ``unpin``."""
        self._pins.update(hashes)

    def unpin(self, hashes: Iterable[BlockHash]) -> None:
        """Take back one ``pin`` of each."""
        for block_hash in hashes:
            assert self._pins[block_hash] > 0, "unpin follows pin"  # noqa: S101 - states what callers must not do
            self._pins[block_hash] -= 1
            if not self._pins[block_hash]:
                del self._pins[block_hash]

    @property
    def pinned(self) -> int:
        """How many names are pinned."""
        return len(self._pins)

    def _line(self, block_hash: BlockHash) -> Iterator[BlockHash]:
        # Names come from the disk: a ring of parents is bounded by the number of blocks.
        at: BlockHash | None = block_hash
        for _ in range(len(self._blocks)):
            if at is None or at not in self._blocks:
                return
            yield at
            at = self._blocks[at].parent
