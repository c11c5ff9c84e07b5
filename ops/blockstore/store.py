"""The block store: content-addressed files within a byte budget, with LRU eviction."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from domain.events.cache import CacheBlockRejected, CacheBlocksEvicted
from domain.kv.hashing import BlockHash
from domain.ports import Clock
from domain.values import WorkerId
from ops.blockstore.blocks import (
    BlockInfo,
    BlockTarget,
    NewBlock,
    OnStoreEvent,
    PutOutcome,
    Rejected,
    StoredBlock,
    StoreStats,
    block_path,
    ignore,
    info_of,
    model_of,
)
from ops.blockstore.disk import Disk, DiskUnavailable
from ops.blockstore.format import encode, read_block, read_token_ids
from ops.blockstore.index import BlockIndex
from ops.blockstore.maintenance import Overview, scan_directory

#: The worker in the events of a store that no worker has.
NO_WORKER: Final = WorkerId("")


class BlockStore:
    """Blocks of all models and agents in one directory; safe to use from any thread.

    The index comes from the scan and from the store's own puts, so ``contains`` and ``children``
    never access the disk. Other processes may delete blocks at any time; that is a miss.

    Args:
        directory: Created with the first block.
        budget_bytes: Most bytes of files; the store evicts before it writes, so it never has more.
        spare: Returns how many bytes the disk may still take, below 0 where some must be freed.
        clock: Stamps uses, from which the next start restores the order.
        on_event: Called with rejected and evicted blocks, in the thread of the call; must not call
            the store.
        worker: The worker that its events name.
    """

    def __init__(
        self,
        directory: Path,
        *,
        budget_bytes: int,
        clock: Clock,
        spare: Callable[[], int] | None = None,
        on_event: OnStoreEvent = ignore,
        disk: Disk | None = None,
        worker: WorkerId = NO_WORKER,
    ) -> None:
        assert budget_bytes >= 0, "a budget is a number of bytes"  # noqa: S101 - a contract of the caller
        self._root = directory
        self._budget_bytes = budget_bytes
        self._spare = spare
        self._clock = clock
        self._on_event = on_event
        self.worker = worker
        self._disk = disk or Disk()
        self._index = BlockIndex()
        # Held for memory access only, so that the engine's thread never waits for a disk.
        self._lock = threading.Lock()
        # Held while files are written or evicted: one writer at a time keeps the budget exact.
        self._writing = threading.Lock()
        self._stats = StoreStats(**dict.fromkeys(StoreStats.__slots__, 0))

    # --- start -----------------------------------------------------------------------------

    def scan(self) -> Overview:
        """Fill the index from the directory, delete drafts of dead writers and enforce the budget.

        Opens no file. Call it once, before any other method.

        Returns:
            What the directory had.

        Raises:
            DiskUnavailable: The directory cannot be read or a file not deleted.
        """
        with self._writing:
            try:
                found = scan_directory(self._root)
                for path in found.leftovers:
                    path.unlink(missing_ok=True)
            except OSError as error:
                raise DiskUnavailable(error) from error
            with self._lock:
                self._index.fill(found.blocks)
            self._make_room(0, set())
        return found

    # --- lookup ----------------------------------------------------------------------------

    def contains(self, block_hash: BlockHash) -> bool:
        """Return whether a block is on disk, synced and under its name."""
        with self._lock:
            return self._index.get(block_hash) is not None

    def file_bytes(self, block_hash: BlockHash) -> int:
        """Return the length of a block's file; 0 if the block is not stored."""
        with self._lock:
            info = self._index.get(block_hash)
        return 0 if info is None else info.size_bytes

    def children(
        self, parent: BlockHash | None, fingerprint: str, *, limit: int
    ) -> list[BlockInfo]:
        """Return blocks that follow ``parent``: tails, and blocks whose beginning may serve.

        Args:
            parent: Name of a block, maybe of another fingerprint; ``None`` for first blocks.
            limit: Most blocks; the most recently used come first.
        """
        with self._lock:
            found = self._index.children(parent, model_of(fingerprint))
        return sorted(found, key=lambda block: -block.used_ns)[:limit]

    def blocks(self) -> list[BlockInfo]:
        """Return every block, least recently used first."""
        with self._lock:
            return list(self._index)

    def stats(self) -> StoreStats:
        """Return counters and sizes."""
        with self._lock:
            return replace(
                self._stats,
                blocks=len(self._index),
                size_bytes=self._index.size_bytes,
                budget_bytes=self._budget_bytes,
                pinned=self._index.pinned,
            )

    # --- write -----------------------------------------------------------------------------

    def put_many(self, blocks: Sequence[NewBlock]) -> list[PutOutcome]:
        """Store blocks, parents before children; returns when they survive a power cut.

        A stored block is not written again. To make room, the store evicts blocks that are neither
        pinned nor ancestors of the new block; a block without room is not stored. For a block whose
        parent is missing nothing is evicted, since no context can reach it yet.

        Raises:
            DiskUnavailable: The disk refused a write. Blocks of earlier groups stay.
        """
        with self._writing:
            try:
                return self._put_many(blocks)
            except OSError as error:
                raise DiskUnavailable(error) from error

    def _put_many(self, blocks: Sequence[NewBlock]) -> list[PutOutcome]:
        now_ns = self._now_ns()
        outcomes = []
        files: list[tuple[Path, list[bytes | memoryview]]] = []
        new: dict[BlockHash, BlockInfo] = {}
        for block in blocks:
            if block.hash in new or self._has_file(block):
                outcomes.append(PutOutcome.PRESENT)
                continue
            buffers = encode(block)
            size_bytes = sum(memoryview(buffer).nbytes for buffer in buffers)
            waiting_bytes = sum(each.size_bytes for each in new.values())
            if not self._make_room(waiting_bytes + size_bytes, self._ancestors(block, new)):
                outcomes.append(PutOutcome.NO_ROOM)
                continue
            new[block.hash] = info_of(block, size_bytes=size_bytes, used_ns=now_ns)
            files.append((self._path(new[block.hash]), buffers))
            outcomes.append(PutOutcome.STORED)
        if files:
            self._disk.write_group(files, time_ns=now_ns)
        with self._lock:
            for info in new.values():
                self._index.add(info)
            self._index.touch(list(new), now_ns)
            self._count(
                stored=len(new),
                stored_bytes=sum(each.size_bytes for each in new.values()),
                present=outcomes.count(PutOutcome.PRESENT),
                no_room=outcomes.count(PutOutcome.NO_ROOM),
            )
        return outcomes

    def _ancestors(self, block: NewBlock, new: dict[BlockHash, BlockInfo]) -> set[BlockHash] | None:
        """Return the ancestors of a block; ``None`` if its parent is not stored."""
        parent = block.parent
        while parent in new:
            parent = new[parent].parent
        if parent is None:
            return set()
        with self._lock:
            return set(self._index.chain(parent)) or None

    def _has_file(self, block: NewBlock) -> bool:
        """Return whether the block's file exists; another process may have written it."""
        info = info_of(block, size_bytes=0, used_ns=self._now_ns())
        try:
            size_bytes = self._path(info).stat().st_size
        except FileNotFoundError:
            self._forget(block.hash)
            return False
        with self._lock:
            if self._index.get(block.hash) is None:
                self._index.add(info._replace(size_bytes=size_bytes))
            self._index.touch([block.hash], self._now_ns())
        return True

    def _make_room(self, size_bytes: int, keep: set[BlockHash] | None) -> bool:
        """Evict the least recently used blocks until ``size_bytes`` fit into budget and disk.

        Args:
            keep: Blocks that must stay; ``None`` to evict none.
        """
        missing_bytes = self._missing_bytes(size_bytes)
        with self._lock:
            over_bytes = self._index.size_bytes + size_bytes - self._budget_bytes
            excess_bytes = max(over_bytes, missing_bytes)
            if excess_bytes <= 0:
                return True
            victims = [] if keep is None else self._index.victims(excess_bytes, keep)
        if sum(victim.size_bytes for victim in victims) < excess_bytes:
            return False
        self._evict(victims)
        return True

    def _missing_bytes(self, size_bytes: int) -> int:
        """Return how many bytes the disk lacks before as many may be written; 0 for none."""
        # A file system that cannot be read counts as one with space; the write reports it.
        with contextlib.suppress(OSError):
            return 0 if self._spare is None else max(0, size_bytes - self._spare())
        return 0

    def relieve(self) -> int:
        """Evict the least recently used blocks while the disk is short; return how many.

        Raises:
            DiskUnavailable: A file could not be deleted.
        """
        with self._writing:
            with self._lock:
                victims = self._index.victims(self._missing_bytes(0))
            if victims:
                self._evict(victims)
        return len(victims)

    def _evict(self, victims: Sequence[BlockInfo]) -> None:
        freed_bytes = sum(victim.size_bytes for victim in victims)
        for victim in victims:
            self._delete(victim)
        with self._lock:
            self._count(evicted=len(victims), evicted_bytes=freed_bytes)
        self._on_event(
            CacheBlocksEvicted(
                worker=self.worker, tier="disk", blocks=len(victims), size_bytes=freed_bytes
            )
        )

    # --- read ------------------------------------------------------------------------------

    def get(
        self, block_hash: BlockHash, fingerprint: str, target: BlockTarget | None = None
    ) -> StoredBlock | Rejected | None:
        """Return a block; ``None`` if it is not stored.

        A file that fails a check is deleted, so that the block can be stored again.

        Args:
            fingerprint: Of the loaded model; blocks of other models are not returned.
            target: Memory for its tensors, which may change whatever is returned.
        """
        with self._lock:
            info = self._index.get(block_hash)
        block = None
        if info is not None and info.model == model_of(fingerprint):
            block = self._read(info, fingerprint, target)
            if isinstance(block, Rejected):
                self._reject(info, block)
                return block
        with self._lock:
            if info is None or block is None:
                self._count(misses=1)
            else:
                self._count(hits=1, hit_bytes=info.size_bytes)
        return block

    def token_ids(self, block_hash: BlockHash) -> tuple[int, ...] | None:
        """Return the tokens that a block covers, from the beginning of its file.

        The checksum is not verified: compare with the ids that ``get`` returns before use.

        Returns:
            ``None`` if the block is not stored or its file is malformed.
        """
        with self._lock:
            info = self._index.get(block_hash)
        if info is None:
            return None
        return read_token_ids(self._path(info))

    def touch(self, hashes: Sequence[BlockHash]) -> None:
        """Record a use of the blocks of a context, in its order; costs one system call."""
        with self._lock:
            now_ns = self._now_ns()
            ends = self._index.touch(hashes, now_ns)
        for block in ends:
            # Only the order after a restart depends on it.
            with contextlib.suppress(OSError):
                os.utime(self._path(block), ns=(now_ns, now_ns))

    def _read(
        self, info: BlockInfo, fingerprint: str, target: BlockTarget | None
    ) -> StoredBlock | Rejected | None:
        path = self._path(info)
        block = read_block(path, info, fingerprint, target)
        if block is None:
            with self._writing:  # another thread may store it again now
                if not path.exists():
                    self._forget(info.hash)
        return block

    def _reject(self, info: BlockInfo, rejected: Rejected) -> None:
        # Removed from the index even if it cannot be deleted, so it is never returned.
        with self._writing:
            with contextlib.suppress(OSError):
                self._path(info).unlink(missing_ok=True)
            self._forget(info.hash)
        with self._lock:
            self._count(rejected=1)
        self._on_event(
            CacheBlockRejected(
                worker=self.worker,
                block=info.hash.hex(),
                reason=rejected.reason.value,
                detail=rejected.detail,
                size_bytes=info.size_bytes,
            )
        )

    # --- pin and delete --------------------------------------------------------------------

    def pin(self, hashes: Sequence[BlockHash]) -> None:
        """Exclude blocks, stored or not, and their ancestors from eviction until ``unpin``."""
        with self._lock:
            self._index.pin(hashes)

    def unpin(self, hashes: Sequence[BlockHash]) -> None:
        """Undo one ``pin`` of each block."""
        with self._lock:
            self._index.unpin(hashes)

    def delete(self, block_hash: BlockHash) -> bool:
        """Delete a block, pinned or not, and return whether it was stored.

        Raises:
            DiskUnavailable: The file could not be deleted.
        """
        with self._writing:
            with self._lock:
                info = self._index.get(block_hash)
            if info is not None:
                self._delete(info)
        return info is not None

    def _delete(self, info: BlockInfo) -> None:
        try:
            self._path(info).unlink(missing_ok=True)
        except OSError as error:
            raise DiskUnavailable(error) from error
        self._forget(info.hash)

    def _forget(self, block_hash: BlockHash) -> None:
        with self._lock:
            self._index.remove(block_hash)

    # --- helpers ---------------------------------------------------------------------------

    def _path(self, info: BlockInfo) -> Path:
        return block_path(self._root, info)

    def _now_ns(self) -> int:
        return int(self._clock.now().timestamp() * 1e9)

    def _count(self, **more: int) -> None:
        """Add to counters; the caller holds the lock."""
        self._stats = self._stats.added(more)
