"""The disk tier of the KV cache: lookups, reads and writes of one block store."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from enum import StrEnum

import structlog

from domain.events.cache import (
    CacheBlockRejected,
    CachePersistencePaused,
    CachePersistenceResumed,
)
from domain.kv.hashing import BlockHash
from domain.ports import Clock
from ops.blockstore.blocks import (
    BlockInfo,
    NewBlock,
    OnStoreEvent,
    RejectReason,
    StoreStats,
    ignore,
)
from ops.blockstore.disk import DiskUnavailable
from ops.blockstore.store import BlockStore
from ops.observe.counter_file import Figures
from worker.cachestore.read_ahead import (
    CANDIDATES_MAX,
    BlockRead,
    Continuation,
    ReadAhead,
    Targets,
)
from worker.cachestore.reports import Manifest, sealed
from worker.cachestore.writer import WriteBehind, WriteOutcome, WriterLimits, WriteState

_log = structlog.get_logger(__name__)

#: Seconds before the scan of an unreadable directory is repeated.
SCAN_RETRY_S = 30.0
#: Seconds between two looks at the free space of the disk.
DISK_CHECK_S = 1.0


class TierState(StrEnum):
    """Whether blocks are written to the disk at the moment."""

    SCANNING = "scanning"
    ON = "on"
    PAUSED = "paused"


class DiskTier:
    """One block store with its write-behind and its read-ahead; safe to use from any thread.

    No method waits for the disk, except ``wait_scanned``, ``flush`` and ``close``. Until the store
    is scanned, the tier finds no block and accepts none.

    Args:
        store: Not scanned yet; the tier is its only user from now on.
        on_event: Receives pauses and resumptions of persistence.
    """

    def __init__(
        self,
        store: BlockStore,
        *,
        clock: Clock,
        on_event: OnStoreEvent = ignore,
        writer_limits: WriterLimits | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._on_event = on_event
        self._writer = WriteBehind(store, clock=clock, on_event=on_event, limits=writer_limits)
        self._read_ahead = ReadAhead(store)
        self._scanned = threading.Event()
        self._paused_since_s: float | None = None
        self._closed = threading.Event()
        self._scanner = threading.Thread(target=self._scan, name="block-scan", daemon=True)

    # --- start and end ---------------------------------------------------------------------

    def start(self) -> None:
        """Start to scan the store, on a thread of its own."""
        self._scanner.start()

    def wait_scanned(self, timeout_s: float) -> bool:
        """Wait for the scan; return whether it ended in time."""
        return self._scanned.wait(timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all submitted blocks are written or dropped; return whether in time."""
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write the queued blocks and end the threads; return whether they ended in time."""
        self._closed.set()
        if self._scanner.ident is not None:
            self._scanner.join(timeout_s)
        ended = self._read_ahead.close(timeout_s)
        return self._writer.close(timeout_s) and ended

    def abandon(self) -> None:
        """Write no further block; see ``WriteBehind.abandon``."""
        self._closed.set()
        self._writer.abandon()

    # --- lookups ---------------------------------------------------------------------------

    def contains(self, name: BlockHash) -> bool:
        """Return whether a block is on disk, synced and under its final name."""
        return self._scanned.is_set() and self._store.contains(name)

    def holds(self, name: BlockHash) -> bool:
        """Return whether a block is on disk or queued for it."""
        return self._writer.holds(name) or self.contains(name)

    def children(self, parent: BlockHash | None, fingerprint: str) -> list[BlockInfo]:
        """Return the latest used blocks that follow ``parent``, at most ``CANDIDATES_MAX``."""
        if not self._scanned.is_set():
            return []
        return self._store.children(parent, fingerprint, limit=CANDIDATES_MAX)

    def state(self) -> TierState:
        """Return whether blocks are written at the moment."""
        if self._writer.stats().paused or self._paused_since_s is not None:
            return TierState.PAUSED
        return TierState.ON if self._scanned.is_set() else TierState.SCANNING

    @property
    def queued(self) -> int:
        """How many blocks wait to be written or are being written."""
        return self._writer.stats().queued

    def stats(self) -> StoreStats:
        """Return the counters of the store."""
        return self._store.stats()

    def counted(self) -> Figures:
        """Return what the tier has done so far and what waits, by metric family."""
        store, writer = self._store.stats(), self._writer.stats()
        return {
            "eviction_total": {"disk": float(store.evicted)},
            "disk_cache_operations_total": {
                "written": float(store.stored),
                "read": float(store.hits),
                "rejected": float(store.rejected),
                "dropped": float(writer.dropped),
            },
            "disk_cache_bytes_total": {
                "written": float(store.stored_bytes),
                "read": float(store.hit_bytes),
            },
            "disk_cache_queued_blocks": {"": float(writer.queued)},
            "cache_persist_duration_seconds": self._writer.durations.read(),
        }

    # --- reads -----------------------------------------------------------------------------

    def read(
        self, names: Sequence[BlockHash], fingerprint: str, targets: Targets | None = None
    ) -> BlockRead | None:
        """Read blocks of one context, each available as soon as it is read; see ``ReadAhead``."""
        return self._read_ahead.read(names, fingerprint, targets)

    def read_continuation(self, wanted: Continuation) -> BlockRead | None:
        """Read the block that covers most of a continuation; see ``ReadAhead``."""
        return self._read_ahead.read_continuation(wanted)

    # --- writes and deletions --------------------------------------------------------------

    def limit_in_flight(self, *, write_bytes: int, read_bytes: int) -> None:
        """Set the most bytes that wait to be written, and that are read ahead, from now on."""
        self._writer.limit_bytes(write_bytes)
        self._read_ahead.limit_bytes(read_bytes)

    def write_bytes(self) -> int:
        """Return the bytes of tensors that wait to be written or are being written."""
        return self._writer.in_flight_bytes()

    def write_state(self, size_bytes: int = 0) -> WriteState:
        """Return whether a block of that size would be accepted for writing now, and why not."""
        if self._scanned.is_set():
            return self._writer.state(size_bytes)
        # The disk failed before the writer could find out.
        return WriteState.OFF if self._paused_since_s is None else WriteState.PAUSED

    def can_write(self, size_bytes: int = 0) -> bool:
        """Return whether a block of that size would be accepted for writing now; cheap."""
        return self.write_state(size_bytes) is WriteState.READY

    def write(
        self, block: NewBlock, copied_bytes: int | None = None
    ) -> Future[WriteOutcome] | None:
        """Enqueue a block for writing; see ``WriteBehind.write``."""
        return self._writer.write(block, copied_bytes) if self._scanned.is_set() else None

    def sealed(self, manifest: Manifest) -> Future[Manifest]:
        """Return the manifest cut to the blocks on disk, once their writes have ended."""
        return sealed(self._writer, manifest)

    def touch(self, names: Sequence[BlockHash]) -> None:
        """Record a use of the blocks of a context that were not read; see ``WriteBehind.touch``."""
        self._writer.touch(names)

    def forget(self, names: Sequence[BlockHash]) -> Future[int]:
        """Delete blocks; see ``WriteBehind.forget``."""
        return self._writer.forget(names)

    def reject(self, name: BlockHash, detail: str) -> None:
        """Delete an intact block that does not fit the loaded model."""
        self._writer.forget([name])
        self._on_event(
            CacheBlockRejected(
                worker=self._store.worker,
                block=name.hex(),
                reason=RejectReason.FOREIGN.value,
                detail=detail,
                size_bytes=0,
            )
        )

    def _scan(self) -> None:
        while not self._try_scan():
            if self._closed.wait(SCAN_RETRY_S):
                return
        self._read_ahead.start()
        self._writer.start()
        self._scanned.set()
        if self._paused_since_s is not None:
            paused_s = self._clock.monotonic() - self._paused_since_s
            self._paused_since_s = None
            self._on_event(
                CachePersistenceResumed(
                    worker=self._store.worker, paused_s=round(paused_s, 3), dropped=0
                )
            )
        while not self._closed.wait(DISK_CHECK_S):
            with suppress(DiskUnavailable):  # a file that cannot be deleted is tried again
                self._store.relieve()

    def _try_scan(self) -> bool:
        started_s = time.monotonic()
        try:
            self._store.scan()
        except DiskUnavailable as error:
            if self._paused_since_s is None:
                self._paused_since_s = self._clock.monotonic()
                self._on_event(
                    CachePersistencePaused(
                        worker=self._store.worker,
                        error=error.errno_name,
                        message=error.message,
                        retry_s=SCAN_RETRY_S,
                    )
                )
            return False
        found = self._store.stats()
        _log.info(
            "cache_scanned",
            blocks=found.blocks,
            size_mb=found.size_bytes // 10**6,
            took_ms=round(1000 * (time.monotonic() - started_s)),
        )
        return True
