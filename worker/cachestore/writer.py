"""Write-behind: the engine enqueues blocks, and one thread writes them to the store."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from domain.events.cache import CachePersistencePaused, CachePersistenceResumed
from domain.kv.hashing import BlockHash
from domain.ports import Clock
from ops.blockstore.blocks import (
    NewBlock,
    OnStoreEvent,
    PutOutcome,
    ignore,
)
from ops.blockstore.disk import DiskUnavailable
from ops.blockstore.store import BlockStore
from ops.observe.exposition import HistogramRecorder
from ops.observe.families import PERSIST_BOUNDS_S


class WriteState(StrEnum):
    """Whether a block would be accepted now."""

    #: It would.
    READY = "ready"
    #: Too many blocks or bytes are in flight; that passes within a write.
    BUSY = "busy"
    #: The disk failed, in a write or in the scan; it is tried again after a pause.
    PAUSED = "paused"
    #: The store had no room and could not evict; it is tried again after a pause.
    FULL = "full"
    #: The writer is closing, or the first scan of the store has not ended yet.
    OFF = "off"


class WriteOutcome(StrEnum):
    """The result of writing a block."""

    #: It is on disk, synced and under its name; maybe it was before.
    STORED = "stored"
    #: The store is full of blocks that may not be evicted.
    NO_ROOM = "no_room"
    #: The disk failed.
    FAILED = "failed"
    #: It was deleted before it was written.
    FORGOTTEN = "forgotten"


#: Most calls of ``when_written`` that wait at once.
WAITERS_MAX = 1024
#: Most uses that wait to be recorded; the latest stay.
USES_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    """Bounds of the write-behind.

    Attributes:
        queue_blocks: Most blocks that wait.
        queue_bytes: Most bytes of tensors in flight: of blocks that wait or are being written.
        group_blocks: Most blocks that share one round of syncs.
        retry_min_s: Pause after a first disk failure, in seconds; doubles with each in a row. Also
            the pause after a block for which the store has no room.
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
        dropped: Blocks that were accepted and not stored: the disk failed or the store was full.
        paused: Whether the last write failed.
    """

    queued: int
    dropped: int
    paused: bool


@dataclass(slots=True, eq=False)
class _Write:
    """A block that waits or is being written, and the bytes that are held for it alone."""

    block: NewBlock
    size_bytes: int
    future: Future[WriteOutcome] = field(default_factory=Future)


class _Deletion(NamedTuple):
    hashes: tuple[BlockHash, ...]
    future: Future[int]


class _Waiter(NamedTuple):
    after: int
    hashes: tuple[BlockHash, ...]
    future: Future[frozenset[BlockHash]]


class WriteBehind:
    """A bounded queue and one thread in front of a ``BlockStore``.

    No method waits for the disk, except ``flush`` and ``close``.

    Args:
        on_event: Receives pauses and resumptions of persistence, on the writing thread.
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
        self._bytes_max = self._limits.queue_bytes
        self._queue: deque[_Write] = deque()
        #: The blocks that wait or are being written.
        self._writes: dict[BlockHash, _Write] = {}
        self._deletions: deque[_Deletion] = deque()
        self._uses: deque[tuple[BlockHash, ...]] = deque(maxlen=USES_MAX)
        self._queued_bytes = 0
        # Blocks are counted as they come; those up to ``_completed`` are written or dropped.
        self._submitted = 0
        self._completed = 0
        self._waiters: deque[_Waiter] = deque()
        self._closing = False
        self._pause: _Pause | None = None
        self._full_until_s: float | None = None
        self._dropped = 0
        #: Of the groups that the store accepted.
        self.durations = HistogramRecorder(PERSIST_BOUNDS_S)
        # A daemon thread, so that a hanging disk does not keep the process alive.
        self._thread = threading.Thread(target=self._run, name="block-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def limit_bytes(self, bytes_max: int) -> None:
        """Set the most bytes of tensors in flight, from now on."""
        with self._changed:
            self._bytes_max = bytes_max

    def in_flight_bytes(self) -> int:
        """Return the bytes of tensors that wait or are being written."""
        return self._queued_bytes

    def state(self, size_bytes: int = 0) -> WriteState:
        """Return whether a block of that size would be accepted now."""
        with self._changed:
            return self._state(size_bytes)

    def write(
        self, block: NewBlock, copied_bytes: int | None = None
    ) -> Future[WriteOutcome] | None:
        """Enqueue a block, parents before children; never waits for the disk.

        Args:
            copied_bytes: Bytes of its tensors that are held for the write alone; all by default.

        Returns:
            The outcome to come; ``None`` if the block is not accepted now (see ``state``). A block
            that is in flight is not enqueued again.
        """
        with self._changed:
            known = self._writes.get(block.hash)
            if known is not None:
                return known.future
            write = _Write(block, block.nbytes if copied_bytes is None else copied_bytes)
            if self._state(write.size_bytes) is not WriteState.READY:
                return None
            # Running futures cannot be cancelled, so a result can always be set.
            write.future.set_running_or_notify_cancel()
            self._queue.append(write)
            self._writes[block.hash] = write
            self._queued_bytes += write.size_bytes
            self._submitted += 1
            self._changed.notify_all()
            return write.future

    def holds(self, block_hash: BlockHash) -> bool:
        """Return whether a block waits to be written."""
        with self._changed:
            return block_hash in self._writes

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

    def touch(self, hashes: Sequence[BlockHash]) -> None:
        """Record a use of stored blocks of one context before any other block is written."""
        with self._changed:
            self._uses.append(tuple(hashes))
            self._changed.notify_all()

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
            queued = self._drop_queued(set(self._writes))
            self._changed.notify_all()
        self._complete(queued, [WriteOutcome.FAILED] * len(queued))

    def stats(self) -> WriterStats:
        """Return the counters."""
        with self._changed:
            return WriterStats(
                queued=len(self._writes),
                dropped=self._dropped,
                paused=self._pause is not None,
            )

    def _state(self, size_bytes: int) -> WriteState:
        if self._closing:
            return WriteState.OFF
        now_s = self._clock.monotonic()
        if self._pause and now_s < self._pause.retry_at_s:
            return WriteState.PAUSED
        if self._full_until_s is not None and now_s < self._full_until_s:
            return WriteState.FULL
        has_room = (
            not self._queued_bytes or self._queued_bytes + size_bytes <= self._bytes_max
        ) and len(self._queue) < self._limits.queue_blocks
        return WriteState.READY if has_room else WriteState.BUSY

    def _run(self) -> None:
        while self._write_group():
            pass

    def _write_group(self) -> bool:
        """Write the next group and release its blocks; return ``False`` at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._queue or self._deletions or self._uses or self._closing
            )
            uses = list(self._uses)
            self._uses.clear()
        self._run_deletions()
        for hashes in uses:
            self._store.touch(hashes)
        with self._changed:
            count = min(len(self._queue), self._limits.group_blocks)
            group = [self._queue.popleft() for _ in range(count)]
        if not group:
            return not self._closing
        started_s = time.monotonic()
        try:
            stored = self._store.put_many([write.block for write in group])
        except DiskUnavailable as error:
            failed = self._pause_after_failure(error.errno_name, error.message)
        except Exception as error:  # noqa: BLE001 - the next group may succeed
            failed = self._pause_after_failure(type(error).__name__, str(error))
        else:
            self.durations.record(time.monotonic() - started_s)
            no_room = PutOutcome.NO_ROOM
            outcomes = [
                WriteOutcome.NO_ROOM if one is no_room else WriteOutcome.STORED for one in stored
            ]
            self._resume(is_full=no_room in stored)
            self._complete(group, outcomes)
            return True
        lost = [*group, *failed]
        self._complete(lost, [WriteOutcome.FAILED] * len(lost))
        return True

    def _run_deletions(self) -> None:
        while True:
            with self._changed:
                if not self._deletions:
                    return
                deletion = self._deletions.popleft()
                queued = self._drop_queued(set(deletion.hashes))
            self._complete(queued, [WriteOutcome.FORGOTTEN] * len(queued))
            try:
                deleted = sum(self._store.delete(each) for each in deletion.hashes)
            except DiskUnavailable as error:
                deletion.future.set_exception(error)
            else:
                deletion.future.set_result(len(queued) + deleted)

    def _drop_queued(self, names: set[BlockHash]) -> list[_Write]:
        """Remove blocks from the queue and return them; under the lock."""
        dropped = [write for write in self._queue if write.block.hash in names]
        if dropped:
            self._queue = deque(write for write in self._queue if write.block.hash not in names)
        return dropped

    def _complete(self, group: Sequence[_Write], outcomes: Sequence[WriteOutcome]) -> None:
        """Release blocks that are not in the queue any more, and set their outcomes."""
        lost = (WriteOutcome.FAILED, WriteOutcome.NO_ROOM)
        ready = []
        with self._changed:
            self._completed += len(group)
            self._dropped += sum(outcome in lost for outcome in outcomes)
            for write in group:
                self._queued_bytes -= write.size_bytes
                del self._writes[write.block.hash]
            while self._waiters and self._waiters[0].after <= self._completed:
                ready.append(self._waiters.popleft())
            self._changed.notify_all()
        for write, outcome in zip(group, outcomes, strict=True):
            write.future.set_result(outcome)
        for waiter in ready:
            if waiter.future.set_running_or_notify_cancel():
                waiter.future.set_result(self._stored(waiter.hashes))

    def _pause_after_failure(self, error: str, message: str) -> list[_Write]:
        """Accept no more for a while, and return all queued blocks, so that they free memory."""
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
            queued = list(self._queue)
            self._queue.clear()
        if before is None:
            self._on_event(
                CachePersistencePaused(
                    worker=self._store.worker, error=error, message=message, retry_s=wait_s
                )
            )
        return queued

    def _resume(self, *, is_full: bool) -> None:
        """End the pause after a failure; begin one if the store has no room."""
        now_s = self._clock.monotonic()
        with self._changed:
            self._full_until_s = now_s + self._limits.retry_min_s if is_full else None
            pause, self._pause = self._pause, None
            dropped = self._dropped
        if pause is not None:
            worker, paused_s = self._store.worker, round(now_s - pause.since_s, 3)
            dropped -= pause.dropped_before
            self._on_event(
                CachePersistenceResumed(worker=worker, paused_s=paused_s, dropped=dropped)
            )

    def _stored(self, hashes: Sequence[BlockHash]) -> frozenset[BlockHash]:
        return frozenset(each for each in hashes if self._store.contains(each))


@dataclass(frozen=True, slots=True)
class _Pause:
    since_s: float
    wait_s: float
    retry_at_s: float
    dropped_before: int
