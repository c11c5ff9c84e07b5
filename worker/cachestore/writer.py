"""Write-behind: the engine hands blocks over and goes on; one thread brings them to the disk."""

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

#: Most calls of ``settled`` that wait at once.
SETTLED_WAITERS_MAX = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterLimits:
    """Bounds of the write-behind.

    Attributes:
        queue_blocks: Most blocks that wait.
        queue_bytes: Most bytes of tensors that wait, those being written included.
        group_blocks: Most blocks that share one round of syncs.
        retry_min_s: Pause after a first failure of the disk; doubles with each in a row.
        retry_max_s: Longest pause.
    """

    queue_blocks: int = 256
    queue_bytes: int = 512 * 1024 * 1024
    group_blocks: int = 16
    retry_min_s: float = 5.0
    retry_max_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStats:
    """What the write-behind did and has before it.

    Attributes:
        queued: Blocks that wait or are being written.
        queued_bytes: Bytes of tensors they hold in memory.
        dropped: Blocks that were not stored for want of room in the queue or of a disk.
        paused: Whether the disk failed last time.
    """

    queued: int
    queued_bytes: int
    dropped: int
    paused: bool


class _Doomed(NamedTuple):
    hashes: tuple[BlockHash, ...]
    future: Future[int]


class _Waiter(NamedTuple):
    after: int
    hashes: tuple[BlockHash, ...]
    future: Future[frozenset[BlockHash]]


class WriteBehind:
    """A bounded queue and one thread before a ``BlockStore``.

    Nothing here is waited for by whoever submits: a full queue or a failing disk costs the
    persistence of a block, counted, and never the generation.

    Args:
        store: Where blocks go.
        clock: For the pauses after a failure.
        on_event: Told when persistence pauses and resumes, in the writing thread.
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
        #: Names of what waits or is being written.
        self._names: set[BlockHash] = set()
        self._doomed: deque[_Doomed] = deque()
        self._queued_bytes = 0
        self._writing = 0
        # Blocks are numbered as they come; all up to the second number were dealt with.
        self._submitted = 0
        self._settled = 0
        self._waiters: deque[_Waiter] = deque()
        self._closing = False
        self._pause: _Pause | None = None
        self._dropped = 0
        # A daemon: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="block-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, block: NewBlock) -> bool:
        """Hand a block over, parents before children; never waits for the disk.

        Returns:
            ``False`` if it will not be stored: the queue is full or persistence pauses.
        """
        size_bytes = block.nbytes
        with self._changed:
            if block.hash in self._names:
                return True
            if not self._has_room(size_bytes):
                self._dropped += 1
                return False
            self._queue.append(block)
            self._names.add(block.hash)
            self._queued_bytes += size_bytes
            self._submitted += 1
            self._changed.notify_all()
            return True

    def refuses(self, size_bytes: int) -> bool:
        """Tell whether a block of that size would be dropped; if so it counts as dropped."""
        with self._changed:
            refused = not self._has_room(size_bytes)
            self._dropped += refused
            return refused

    def holds(self, block_hash: BlockHash) -> bool:
        """Tell whether a block waits to be written."""
        with self._changed:
            return block_hash in self._names

    def forget(self, hashes: Sequence[BlockHash]) -> Future[int]:
        """Delete blocks, whether they wait or are on disk, before anything else is written.

        Returns:
            How many there were. ``DiskUnavailable`` if one could not be deleted.
        """
        doomed = _Doomed(tuple(hashes), Future())
        with self._changed:
            if self._closing:
                doomed.future.cancel()
                return doomed.future
            self._doomed.append(doomed)
            self._changed.notify_all()
        return doomed.future

    def settled(self, hashes: Sequence[BlockHash]) -> Future[frozenset[BlockHash]]:
        """Say which of ``hashes`` are on disk once all that was submitted before is dealt with.

        A hash in the answer is of a block that survives a power cut. With too many callers waiting
        the answer is given at once and may lack blocks that are still on their way.
        """
        future: Future[frozenset[BlockHash]] = Future()
        with self._changed:
            if self._settled < self._submitted and len(self._waiters) < SETTLED_WAITERS_MAX:
                self._waiters.append(_Waiter(self._submitted, tuple(hashes), future))
                return future
        future.set_result(self._stored(hashes))
        return future

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was submitted so far is stored or dropped; whether it was in time."""
        with self._changed:
            goal = self._submitted
            return self._changed.wait_for(lambda: self._settled >= goal, timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits and end the thread; whether that was done in time."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def stats(self) -> WriterStats:
        """Return counters."""
        with self._changed:
            return WriterStats(
                queued=len(self._queue) + self._writing,
                queued_bytes=self._queued_bytes,
                dropped=self._dropped,
                paused=self._pause is not None,
            )

    def _has_room(self, size_bytes: int) -> bool:
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
        """Deal with the next group; ``False`` at the end. Holds no block when it returns."""
        self._wait()
        self._delete_doomed()
        group = self._take()
        if not group:
            return not self._closing
        try:
            self._store.put_many(group)
        except DiskUnavailable as error:
            self._failed(error.errno_name, error.message, group)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next block may go well
            self._failed(type(error).__name__, str(error), group)
        else:
            self._resume()
        self._settle(group)
        return True

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._doomed or self._closing)

    def _delete_doomed(self) -> None:
        while True:
            with self._changed:
                if not self._doomed:
                    return
                doomed = self._doomed.popleft()
                waiting = self._drop_queued(set(doomed.hashes))
            try:
                deleted = sum(self._store.delete(each) for each in doomed.hashes)
            except DiskUnavailable as error:
                doomed.future.set_exception(error)
            else:
                doomed.future.set_result(waiting + deleted)

    def _drop_queued(self, names: set[BlockHash]) -> int:
        """Take blocks out of the queue; under the lock."""
        dropped = [block for block in self._queue if block.hash in names]
        if dropped:
            self._queue = deque(block for block in self._queue if block.hash not in names)
            self._forget_queued(dropped)
            self._settled += len(dropped)
        return len(dropped)

    def _forget_queued(self, blocks: Sequence[NewBlock]) -> None:
        self._queued_bytes -= sum(block.nbytes for block in blocks)
        self._names.difference_update(block.hash for block in blocks)

    def _take(self) -> list[NewBlock]:
        """Return the next blocks, or none if nothing waits."""
        with self._changed:
            count = min(len(self._queue), self._limits.group_blocks)
            group = [self._queue.popleft() for _ in range(count)]
            self._writing = len(group)
            return group

    def _settle(self, group: Sequence[NewBlock]) -> None:
        ready = []
        with self._changed:
            self._settled += len(group)
            self._forget_queued(group)
            self._writing = 0
            while self._waiters and self._waiters[0].after <= self._settled:
                ready.append(self._waiters.popleft())
            self._changed.notify_all()
        for waiter in ready:
            if waiter.future.set_running_or_notify_cancel():
                waiter.future.set_result(self._stored(waiter.hashes))

    def _failed(self, error: str, message: str, group: Sequence[NewBlock]) -> None:
        """Drop what waits, and refuse more for a while: memory is better used for blocks."""
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
            self._settled += len(dropped)
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
