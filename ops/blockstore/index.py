"""The blocks in order of eviction. Pure; the owner holds the lock."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from operator import attrgetter

from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import BlockInfo

_USED = attrgetter("used_ns")


class BlockIndex:
    """Blocks in order of use, and the children of each.

    A context that uses a block uses its ancestors too, so a block is never evicted before its
    descendants: using it moves its ancestors behind it, and the least recently used is a leaf.
    Names are unique over all models, so a block may have an ancestor of another model: checkpoints
    have a fingerprint of their own, and their parents are blocks.
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
        """Return a block; ``None`` if it is not in the index."""
        return self._blocks.get(block_hash)

    def children(self, parent: BlockHash | None, model: str) -> list[BlockInfo]:
        """Return the children of ``parent`` that belong to ``model``.

        Args:
            parent: A block, maybe of another model; ``None`` for first blocks of contexts.
        """
        children = (self._blocks[each] for each in self._children.get(parent or model, ()))
        return [block for block in children if block.model == model]

    def add(self, block: BlockInfo) -> None:
        """Add or replace a block as the most recently used."""
        self.remove(block.hash)
        self._blocks[block.hash] = block
        key = block.parent or block.model
        self._children[key] = (*self._children.get(key, ()), block.hash)
        self.size_bytes += block.size_bytes

    def remove(self, block_hash: BlockHash) -> BlockInfo | None:
        """Remove a block if it is in the index; pins of its name stay."""
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

        Returns:
            The last block of each chain: the order of all others follows from theirs.
        """
        seen: set[BlockHash] = set()
        ends = []
        for block_hash in reversed(hashes):
            if block_hash in seen or block_hash not in self._blocks:
                continue
            self._blocks[block_hash] = self._blocks[block_hash]._replace(used_ns=used_ns)
            ends.append(self._blocks[block_hash])
            for each in self.chain(block_hash):
                seen.add(each)
                self._blocks.move_to_end(each)
        return ends

    def fill(self, blocks: Iterable[BlockInfo]) -> None:
        """Replace all blocks, ordered by the last use of each and of its descendants."""
        by_hash = {block.hash: block for block in blocks}
        self.size_bytes = sum(block.size_bytes for block in by_hash.values())
        children: dict[BlockHash | str, list[BlockHash]] = {}
        for block in by_hash.values():
            children.setdefault(block.parent or block.model, []).append(block.hash)
        self._children = {key: tuple(each) for key, each in children.items()}
        newest_first: dict[BlockHash, BlockInfo] = {}
        for block in sorted(by_hash.values(), key=_USED, reverse=True):
            chain = []
            at: BlockInfo | None = block
            # Ancestors that are not placed yet; a cycle of parents ends there too.
            while at is not None and at.hash not in newest_first:
                chain.append(at)
                newest_first[at.hash] = at
                at = by_hash.get(at.parent) if at.parent else None
            if len(chain) > 1:
                for each in reversed(chain):
                    newest_first[each.hash] = newest_first.pop(each.hash)
        self._blocks = OrderedDict(reversed(newest_first.items()))

    def victims(self, free_bytes: int, keep: Collection[BlockHash] = ()) -> list[BlockInfo]:
        """Return which blocks to delete to free ``free_bytes``, oldest first.

        All that may be deleted are returned if they do not free as much.

        Args:
            keep: Blocks that must stay, besides the pinned ones; the ancestors of all stay too.
        """
        found: list[BlockInfo] = []
        # Parents of blocks that stay; they come later in the order than their children.
        needed: set[BlockHash | None] = set()
        for block in self._blocks.values():
            if free_bytes <= 0:
                break
            if block.hash in self._pins or block.hash in keep or block.hash in needed:
                needed.add(block.parent)
            else:
                found.append(block)
                free_bytes -= block.size_bytes
        return found

    def orphans(self) -> list[BlockInfo]:
        """Return blocks that no context can reach, because an ancestor is missing."""
        reached: dict[BlockHash, bool] = {}
        for block in self._blocks.values():
            chain = []
            for each in self.chain(block.hash):
                if each in reached:
                    break
                chain.append(each)
            for each in reversed(chain):
                parent = self._blocks[each].parent
                reached[each] = not parent or reached.get(parent, False)
        return [block for block in self._blocks.values() if not reached[block.hash]]

    def pin(self, hashes: Iterable[BlockHash]) -> None:
        """Keep blocks and their ancestors out of ``victims``; each call needs its own ``unpin``."""
        self._pins.update(hashes)

    def unpin(self, hashes: Iterable[BlockHash]) -> None:
        """Undo one ``pin`` of each block."""
        for block_hash in hashes:
            assert self._pins[block_hash] > 0, "unpin follows pin"  # noqa: S101 - a contract of the caller
            self._pins[block_hash] -= 1
            if not self._pins[block_hash]:
                del self._pins[block_hash]

    @property
    def pinned(self) -> int:
        """How many names are pinned."""
        return len(self._pins)

    def chain(self, block_hash: BlockHash) -> Iterator[BlockHash]:
        """Yield a block and its ancestors up to the first missing one, nearest first."""
        # Names come from the disk, so parents may form a cycle; the number of blocks bounds it.
        at: BlockHash | None = block_hash
        for _ in range(len(self._blocks)):
            if at is None or at not in self._blocks:
                return
            yield at
            at = self._blocks[at].parent
