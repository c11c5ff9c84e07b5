"""Read-ahead: a thread reads blocks from the disk, so that no decode step waits for it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

from domain.kv.hashing import BlockHash
from ops.blockstore.blocks import Rejected, StoredBlock
from ops.blockstore.store import BlockStore

#: The result for one block of a load; ``None`` for a missing block, or one that was not read.
Loaded: TypeAlias = StoredBlock | Rejected | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderLimits:
    """Bounds of the read-ahead.

    Attributes:
        loads: Most loads that wait or run at once.
        load_bytes: Bytes after which one load stops; the caller may request the rest again.
    """

    loads: int = 64
    load_bytes: int = 1 << 30


#: Blocks whose tokens are compared to find the one that covers most of a continuation.
CANDIDATES_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What follows a context's last whole block.

    Attributes:
        parent: Hash of that block, ``None`` at the start.
        token_ids: The tokens that follow, at most one block.
        fingerprint: Block fingerprint.
        usable_tokens: From a stored block's length and the number of its first tokens that agree
            to the number of tokens that can be used.
        known_tokens: Tokens that memory covers already; only a block that covers more is read.
    """

    parent: BlockHash | None
    token_ids: Sequence[int]
    fingerprint: str
    usable_tokens: Callable[[int, int], int]
    known_tokens: int = 0


class _Load(NamedTuple):
    pinned: tuple[BlockHash, ...]
    read: Callable[[], list[Loaded]]
    future: Future[list[Loaded]]


class BlockLoader:
    """A bounded queue of loads and one thread that reads and checks files.

    Args:
        store: The block store.
        limits: Bounds.
    """

    def __init__(self, store: BlockStore, *, limits: LoaderLimits | None = None) -> None:
        self._store = store
        self._limits = limits or LoaderLimits()
        self._changed = threading.Condition()
        self._queue: deque[_Load] = deque()
        self._running = 0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="block-loader", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def load(self, hashes: Sequence[BlockHash], fingerprint: str) -> Future[list[Loaded]] | None:
        """Read the blocks of one context, in order.

        Reading stops at the first missing or rejected block, because later blocks are useless
        without it, and after ``load_bytes``. Blocks are pinned against eviction until they are
        read. A load that is cancelled before its turn is skipped.

        Returns:
            One result for each hash; ``None`` instead if too many loads wait.
        """
        return self._enqueue(tuple(hashes), partial(self._read, tuple(hashes), fingerprint))

    def load_continuation(self, wanted: Continuation) -> Future[list[Loaded]] | None:
        """Read the stored block, whole or tail, that covers most of a context's continuation.

        Returns:
            That block, or an empty list if none is usable; otherwise as ``load``.
        """
        return self._enqueue((), partial(self._read_continuation, wanted))

    def _enqueue(
        self, pinned: tuple[BlockHash, ...], read: Callable[[], list[Loaded]]
    ) -> Future[list[Loaded]] | None:
        load = _Load(pinned, read, Future())
        with self._changed:
            if self._closing or len(self._queue) + self._running >= self._limits.loads:
                return None
            self._store.pin(pinned)
            self._queue.append(load)
            self._changed.notify_all()
        return load.future

    def close(self, timeout_s: float) -> bool:
        """Cancel waiting loads and end the thread; return whether it ended in time."""
        with self._changed:
            self._closing = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        for load in left:
            self._store.unpin(load.pinned)
            load.future.cancel()
            load.future.set_running_or_notify_cancel()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while self._serve_next():
            pass

    def _serve_next(self) -> bool:
        """Serve the next load and release its blocks; return ``False`` at the end."""
        load = self._take()
        if load is None:
            return False
        if load.future.set_running_or_notify_cancel():
            self._serve(load)
        self._store.unpin(load.pinned)
        with self._changed:
            self._running = 0
        return True

    def _take(self) -> _Load | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            if not self._queue:
                return None
            self._running = 1
            return self._queue.popleft()

    def _serve(self, load: _Load) -> None:
        try:
            found = load.read()
        except Exception as error:  # noqa: BLE001 - the caller that waits for the result gets it
            load.future.set_exception(error)
        else:
            load.future.set_result(found)

    def _read(self, hashes: Sequence[BlockHash], fingerprint: str) -> list[Loaded]:
        found: list[Loaded] = []
        read_bytes = 0
        for block_hash in hashes:
            if read_bytes >= self._limits.load_bytes:
                break
            block = self._store.get(block_hash, fingerprint)
            found.append(block)
            if not isinstance(block, StoredBlock):
                break
            read_bytes += sum(tensor.nbytes for tensor in block.payload.values())
        whole = [block.meta.hash for block in found if isinstance(block, StoredBlock)]
        self._store.touch(whole)
        return found + [None] * (len(hashes) - len(found))

    def _read_continuation(self, wanted: Continuation) -> list[Loaded]:
        best: tuple[int, BlockHash] | None = None
        for info in self._store.children(wanted.parent, wanted.fingerprint, limit=CANDIDATES_MAX):
            token_ids = self._store.token_ids(info.hash) or ()
            common = _common_tokens(token_ids, wanted.token_ids)
            usable = wanted.usable_tokens(len(token_ids), common)
            if usable > max(wanted.known_tokens, best[0] if best else 0):
                best = usable, info.hash
        return [] if best is None else self._read([best[1]], wanted.fingerprint)


def _common_tokens(stored: Sequence[int], wanted: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    count = 0
    for own, other in zip(stored, wanted, strict=False):
        if own != other:
            break
        count += 1
    return count
