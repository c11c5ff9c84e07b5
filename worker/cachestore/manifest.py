"""The manifest of a finished job: the blocks that hold its context on disk.

Rule: a manifest names a block only after the block's file is synced, renamed, and its directory
synced, and a block never changes. So after a crash at any instant, the last manifest in the log
names complete blocks, and so does every older one. Blocks without a manifest do no harm. Eviction
may remove blocks of a manifest later, the end first; a reader uses the beginning that is left.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, replace

from domain.kv.hashing import BlockHash
from worker.cachestore.writer import WriteBehind


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The blocks of one context.

    Attributes:
        fingerprint: Block fingerprint.
        blocks: Hashes of the whole blocks, in order.
        tail: Hash of the last, partial block, ``None`` if there is none.
        checkpoints: Names of the checkpoints that were made on the way. They are files of the same
            store, and hold text too: who erases the context deletes them.
    """

    fingerprint: str
    blocks: tuple[BlockHash, ...]
    tail: BlockHash | None = None
    checkpoints: tuple[BlockHash, ...] = ()

    @property
    def hashes(self) -> tuple[BlockHash, ...]:
        """All names: the blocks in order, the tail, the checkpoints."""
        tail = () if self.tail is None else (self.tail,)
        return (*self.blocks, *tail, *self.checkpoints)

    def cut(self, stored: Collection[BlockHash]) -> Manifest:
        """Return the beginning that can be restored from the blocks in ``stored``.

        All stored checkpoints stay named, also those behind a block that is missing.
        """
        count = next(
            (at for at, each in enumerate(self.blocks) if each not in stored), len(self.blocks)
        )
        whole = count == len(self.blocks)
        tail = self.tail if whole and self.tail in stored else None
        checkpoints = tuple(each for each in self.checkpoints if each in stored)
        return replace(self, blocks=self.blocks[:count], tail=tail, checkpoints=checkpoints)


def sealed(writer: WriteBehind, manifest: Manifest) -> Future[Manifest]:
    """Return the manifest cut to the blocks on disk, once their writes have ended.

    Only a sealed manifest may be appended to the log.
    """
    result: Future[Manifest] = Future()

    def finish(stored: Future[frozenset[BlockHash]]) -> None:
        result.set_result(manifest.cut(stored.result()))

    writer.when_written(manifest.hashes).add_done_callback(finish)
    return result
