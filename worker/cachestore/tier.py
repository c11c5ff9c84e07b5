"""The disk as the engine sees it: what is there, blocks out of it, blocks into it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum

from domain.kv.hashing import BlockHash
from domain.ports import Clock
from ops.blockstore.blocks import BlockInfo, NewBlock, RejectReason
from ops.blockstore.disk import DiskUnavailable
from ops.blockstore.events import (
    BlockRejected,
    OnStoreEvent,
    PersistencePaused,
    PersistenceResumed,
    ignore,
)
from ops.blockstore.report import ScanReport, StoreStats
from ops.blockstore.store import BlockStore
from worker.cachestore.loader import (
    CANDIDATES_MAX,
    BlockLoader,
    Continuation,
    Loaded,
    LoaderLimits,
)
from worker.cachestore.manifest import Manifest, sealed
from worker.cachestore.writer import WriteBehind, WriterLimits

#: Pause before a directory that could not be read is tried again.
SCAN_RETRY_S = 30.0


class TierState(StrEnum):
    """Whether blocks go to the disk now."""

    SCANNING = "scanning"
    ON = "on"
    PAUSED = "paused"


class Storage(StrEnum):
    """How keys and values are written: as they are, or in eight bits."""

    EXACT = "exact"
    INT8 = "int8"


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFigures:
    """What the disk holds and does.

    Attributes:
        state: Whether blocks go to it now.
        store: Its counters.
        queued: Blocks that wait to be written.
        dropped: Blocks that were not written for want of room in the queue or of a disk.
    """

    state: TierState
    store: StoreStats
    queued: int
    dropped: int


class DiskTier:
    """One block store with its write-behind and its read-ahead; safe to use from any thread.

    No method waits for the disk, except ``wait_scanned``, ``flush`` and ``close``. Until the store
    was scanned it knows nothing and takes nothing.

    Args:
        store: Not scanned yet; told of nothing by others from now on.
        clock: For the pauses after a failure.
        storage: How whoever submits shall write its blocks.
        on_event: Told when persistence pauses and resumes.
        on_scanned: Told what the scan found, in the scanning thread.
        writer_limits: Bounds of the write-behind.
        loader_limits: Bounds of the read-ahead.
    """

    def __init__(
        self,
        store: BlockStore,
        *,
        clock: Clock,
        storage: Storage = Storage.EXACT,
        on_event: OnStoreEvent = ignore,
        on_scanned: Callable[[ScanReport], None] = lambda _: None,
        writer_limits: WriterLimits | None = None,
        loader_limits: LoaderLimits | None = None,
    ) -> None:
        self.storage = storage
        self._store = store
        self._clock = clock
        self._on_event = on_event
        self._on_scanned = on_scanned
        self._writer = WriteBehind(store, clock=clock, on_event=on_event, limits=writer_limits)
        self._loader = BlockLoader(store, limits=loader_limits)
        self._scanned = threading.Event()
        self._paused_since_s: float | None = None
        self._closed = threading.Event()
        self._scanner = threading.Thread(target=self._scan, name="block-scan", daemon=True)

    # --- life ------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look through the store, in a thread of its own."""
        self._scanner.start()

    def wait_scanned(self, timeout_s: float) -> bool:
        """Wait until it is known what is there; whether that was in time."""
        return self._scanned.wait(timeout_s)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was submitted so far is dealt with; whether it was in time."""
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float) -> bool:
        """Write what waits and end the threads; whether that was done in time."""
        self._closed.set()
        if self._scanner.ident is not None:
            self._scanner.join(timeout_s)
        ended = self._loader.close(timeout_s)
        return self._writer.close(timeout_s) and ended

    # --- what is there ---------------------------------------------------------------------

    def contains(self, name: BlockHash) -> bool:
        """Tell whether a block is on disk, synced and under its name."""
        return self._scanned.is_set() and self._store.contains(name)

    def holds(self, name: BlockHash) -> bool:
        """Tell whether a block is on disk or on its way there."""
        return self._writer.holds(name) or self.contains(name)

    def children(self, parent: BlockHash | None, fingerprint: str) -> list[BlockInfo]:
        """Return the blocks that follow ``parent``, the most recently used first; a few."""
        if not self._scanned.is_set():
            return []
        return self._store.children(parent, fingerprint, limit=CANDIDATES_MAX)

    def figures(self) -> TierFigures:
        """Return the state and the counters."""
        writer = self._writer.stats()
        state = TierState.ON if self._scanned.is_set() else TierState.SCANNING
        if writer.paused or self._paused_since_s is not None:
            state = TierState.PAUSED
        return TierFigures(
            state=state,
            store=self._store.stats(),
            queued=writer.queued,
            dropped=writer.dropped,
        )

    # --- out of it -------------------------------------------------------------------------

    def load(self, names: Sequence[BlockHash], fingerprint: str) -> Future[list[Loaded]] | None:
        """Read blocks of one context; see ``BlockLoader.load``."""
        return self._loader.load(names, fingerprint)

    def load_continuation(self, wanted: Continuation) -> Future[list[Loaded]] | None:
        """Read how a context goes on; see ``BlockLoader.load_continuation``."""
        return self._loader.load_continuation(wanted)

    # --- into it ---------------------------------------------------------------------------

    def refuses(self, size_bytes: int) -> bool:
        """Tell whether a block would not be taken now; then it need not be made."""
        return not self._scanned.is_set() or self._writer.refuses(size_bytes)

    def submit(self, block: NewBlock) -> bool:
        """Hand a block over; see ``WriteBehind.submit``."""
        return self._scanned.is_set() and self._writer.submit(block)

    def sealed(self, manifest: Manifest) -> Future[Manifest]:
        """Return the manifest cut to what is on disk, once its blocks had their chance."""
        return sealed(self._writer, manifest)

    def forget(self, names: Sequence[BlockHash]) -> Future[int]:
        """Delete blocks; see ``WriteBehind.forget``."""
        return self._writer.forget(names)

    def reject(self, name: BlockHash, detail: str) -> None:
        """Delete a block that is whole, but not one of the model at hand."""
        self._writer.forget([name])
        self._on_event(
            BlockRejected(hash=name, reason=RejectReason.FOREIGN, detail=detail, size_bytes=0)
        )

    def _scan(self) -> None:
        while (report := self._scanned_once()) is None:
            if self._closed.wait(SCAN_RETRY_S):
                return
        self._loader.start()
        self._writer.start()
        self._scanned.set()
        self._on_scanned(report)
        if self._paused_since_s is not None:
            paused_s = self._clock.monotonic() - self._paused_since_s
            self._paused_since_s = None
            self._on_event(PersistenceResumed(paused_s=paused_s, dropped=0))

    def _scanned_once(self) -> ScanReport | None:
        try:
            return self._store.scan()
        except DiskUnavailable as error:
            if self._paused_since_s is None:
                self._paused_since_s = self._clock.monotonic()
                self._on_event(
                    PersistencePaused(
                        error=error.errno_name, message=error.message, retry_s=SCAN_RETRY_S
                    )
                )
            return None
