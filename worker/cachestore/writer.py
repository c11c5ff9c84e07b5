"""Write-behind: the engine enqueues blocks, and one thread writes them to the disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import NamedTuple

from domain.kv.hashing import BlockHash
from domain.ports import Clock
from ops.blockstore.blocks import NewBlock
from ops.blockstore.disk import DiskUnavailable
from ops.blockstore.events import OnStoreEvent, PersistencePaused, PersistenceResumed, ignore
from ops.blockstore.store import BlockStore

#: Most calls of ``when_written`` that wait at once.
WAITERS_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    """Bounds of the write-behind.

    Attributes:
        queue_blocks: Most blocks that wait.
        queue_bytes: Most bytes of tensors that wait or are being written.
        group_blocks: Most blocks that share one round of syncs.
        retry_min_s: Pause after a first disk failure, in seconds; doubles with each in a row.
        retry_max_s: Longest pause.
    """

    queue_blocks: int = 256
    queue_bytes: int = 512 * 1024 * 1024
    group_blocks: int = 16
    retry_min_s: float = 5.0
    retry_max_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStats:
    """Counters of the write-behind.

    Attributes:
        queued: Blocks that wait or are being written.
        queued_bytes: Bytes of their tensors in memory.
        dropped: Blocks that were not stored, because the queue was full or the disk failed.
        paused: Whether the last write failed.
    """

    queued: int
    queued_bytes: int
    dropped: int
    paused: bool


class _Deletion(NamedTuple):
    hashes: tuple[BlockHash, ...]
    future: Future[int]


class _Waiter(NamedTuple):
    after: int
    hashes: tuple[BlockHash, ...]
    future: Future[frozenset[BlockHash]]


class WriteBehind:
    """A bounded queue and one thread in front of a ``BlockStore``.

    ``submit`` never waits. A full queue or a failing disk drops blocks, which are counted;
    generation continues.

    Args:
        store: Receives the blocks.
        clock: For the pauses after a failure.
        on_event: Receives pauses and resumptions of persistence, on the writing thread.
        limits: Bounds.
    """

    def __init__(
        self,
        store: BlockStore,
        *,
        clock: Clock,
        on_event: OnStoreEvent = ignore,
        limits: WriterLimits | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_event = on_event
        self._limits = limits or WriterLimits()
        self._changed = threading.Condition()
        self._queue: deque[NewBlock] = deque()
        #: Hashes of the blocks that wait or are being written.
        self._names: set[BlockHash] = set()
        self._deletions: deque[_Deletion] = deque()
        self._queued_bytes = 0
        self._writing = 0
        # Blocks are counted as they come; those up to ``_completed`` are written or dropped.
        self._submitted = 0
        self._completed = 0
        self._waiters: deque[_Waiter] = deque()
        self._closing = False
        self._pause: _Pause | None = None
        self._dropped = 0
        # A daemon thread, so that a hanging disk does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="block-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, block: NewBlock) -> bool:
        """Enqueue a block, parents before children; never waits for the disk.

        Returns:
            ``False`` if the block is dropped: the queue is full or persistence is paused.
        """
        size_bytes = block.nbytes
        with self._changed:
            if block.hash in self._names:
                return True
            if not self._accepts(size_bytes):
                self._dropped += 1
                return False
            self._queue.append(block)
            self._names.add(block.hash)
            self._queued_bytes += size_bytes
            self._submitted += 1
            self._changed.notify_all()
            return True

    def refuses(self, size_bytes: int) -> bool:
        """Return whether a block of that size would be dropped; such a call counts as a drop."""
        with self._changed:
            refused = not self._accepts(size_bytes)
            self._dropped += refused
            return refused

    def holds(self, block_hash: BlockHash) -> bool:
        """Return whether a block waits to be written."""
        with self._changed:
            return block_hash in self._names

    def forget(self, hashes: Sequence[BlockHash]) -> Future[int]:
        """Delete queued and stored blocks before any other block is written.

        Returns:
            The number of deleted blocks; ``DiskUnavailable`` if one could not be deleted.
        """
        deletion = _Deletion(tuple(hashes), Future())
        with self._changed:
            if self._closing:
                deletion.future.cancel()
                return deletion.future
            self._deletions.append(deletion)
            self._changed.notify_all()
        return deletion.future

    def when_written(self, hashes: Sequence[BlockHash]) -> Future[frozenset[BlockHash]]:
        """Return which hashes are on disk, once all blocks submitted so far are written or dropped.

        The blocks of the result survive a power failure. With more than ``WAITERS_MAX`` callers
        waiting, the result comes at once and may lack blocks that are still queued.
        """
        future: Future[frozenset[BlockHash]] = Future()
        with self._changed:
            if self._completed < self._submitted and len(self._waiters) < WAITERS_MAX:
                self._waiters.append(_Waiter(self._submitted, tuple(hashes), future))
                return future
        future.set_result(self._stored(hashes))
        return future

    def flush(self, timeout_s: float) -> bool:
        """Wait until all submitted blocks are written or dropped; return whether in time."""
        with self._changed:
            goal = self._submitted
            return self._changed.wait_for(lambda: self._completed >= goal, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write the queued blocks and end the thread; return whether it ended in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Drop the queued blocks and refuse all others: what they hold cannot be trusted."""
        with self._changed:
            self._closing = True
            self._drop_queued(set(self._names))
            self._changed.notify_all()

    def stats(self) -> WriterStats:
        """Return the counters."""
        with self._changed:
            return WriterStats(
                queued=len(self._queue) + self._writing,
                queued_bytes=self._queued_bytes,
                dropped=self._dropped,
                paused=self._pause is not None,
            )

    def _accepts(self, size_bytes: int) -> bool:
        if self._closing or (self._pause and self._clock.monotonic() < self._pause.retry_at_s):
            return False
        return (
            len(self._queue) < self._limits.queue_blocks
            and self._queued_bytes + size_bytes <= self._limits.queue_bytes
        )

    def _run(self) -> None:
        while self._write_group():
            pass

    def _write_group(self) -> bool:
        """Write the next group and release its blocks; return ``False`` at the end."""
        self._wait()
        self._run_deletions()
        group = self._take()
        if not group:
            return not self._closing
        try:
            self._store.put_many(group)
        except DiskUnavailable as error:
            self._pause_after_failure(error.errno_name, error.message, group)
        except Exception as error:  # noqa: BLE001 - the next group may succeed
            self._pause_after_failure(type(error).__name__, str(error), group)
        else:
            self._resume()
        self._complete(group)
        return True

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._deletions or self._closing)

    def _run_deletions(self) -> None:
        while True:
            with self._changed:
                if not self._deletions:
                    return
                deletion = self._deletions.popleft()
                waiting = self._drop_queued(set(deletion.hashes))
            try:
                deleted = sum(self._store.delete(each) for each in deletion.hashes)
            except DiskUnavailable as error:
                deletion.future.set_exception(error)
            else:
                deletion.future.set_result(waiting + deleted)

    def _drop_queued(self, names: set[BlockHash]) -> int:
        """Remove blocks from the queue; under the lock."""
        dropped = [block for block in self._queue if block.hash in names]
        if dropped:
            self._queue = deque(block for block in self._queue if block.hash not in names)
            self._forget_queued(dropped)
            self._completed += len(dropped)
        return len(dropped)

    def _forget_queued(self, blocks: Sequence[NewBlock]) -> None:
        self._queued_bytes -= sum(block.nbytes for block in blocks)
        self._names.difference_update(block.hash for block in blocks)

    def _take(self) -> list[NewBlock]:
        """Return the next blocks, or none if none waits."""
        with self._changed:
            count = min(len(self._queue), self._limits.group_blocks)
            group = [self._queue.popleft() for _ in range(count)]
            self._writing = len(group)
            return group

    def _complete(self, group: Sequence[NewBlock]) -> None:
        ready = []
        with self._changed:
            self._completed += len(group)
            self._forget_queued(group)
            self._writing = 0
            while self._waiters and self._waiters[0].after <= self._completed:
                ready.append(self._waiters.popleft())
            self._changed.notify_all()
        for waiter in ready:
            if waiter.future.set_running_or_notify_cancel():
                waiter.future.set_result(self._stored(waiter.hashes))

    def _pause_after_failure(self, error: str, message: str, group: Sequence[NewBlock]) -> None:
        """Drop all queued blocks and refuse more for a while, so that they do not fill memory."""
        now_s = self._clock.monotonic()
        with self._changed:
            before = self._pause
            wait_s = min(
                before.wait_s * 2 if before else self._limits.retry_min_s, self._limits.retry_max_s
            )
            if before:
                self._pause = replace(before, wait_s=wait_s, retry_at_s=now_s + wait_s)
            else:
                self._pause = _Pause(now_s, wait_s, now_s + wait_s, self._dropped)
            dropped = list(self._queue)
            self._queue.clear()
            self._dropped += len(group) + len(dropped)
            self._completed += len(dropped)
            self._forget_queued(dropped)
        if before is None:
            self._on_event(PersistencePaused(error=error, message=message, retry_s=wait_s))

    def _resume(self) -> None:
        with self._changed:
            pause, self._pause = self._pause, None
            dropped = self._dropped
        if pause is not None:
            paused_s = self._clock.monotonic() - pause.since_s
            self._on_event(
                PersistenceResumed(paused_s=paused_s, dropped=dropped - pause.dropped_before)
            )

    def _stored(self, hashes: Sequence[BlockHash]) -> frozenset[BlockHash]:
        return frozenset(each for each in hashes if self._store.contains(each))


@dataclass(frozen=True, slots=True)
class _Pause:
    since_s: float
    wait_s: float
    retry_at_s: float
    dropped_before: int
