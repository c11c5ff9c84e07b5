"""Read-ahead: blocks come off the disk in their own thread, so that no decode step waits."""

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

#: What became of one block of a load; ``None`` is a miss, or a block that was not read any more.
Loaded: TypeAlias = StoredBlock | Rejected | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderLimits:
    """Bounds of the read-ahead.

    Attributes:
        loads: Most loads that wait or run at once.
        load_bytes: Bytes of files after which one load stops; the rest can be asked for again.
    """

    loads: int = 64
    load_bytes: int = 1 << 30


#: Blocks whose tokens are looked at to find the one that serves most.
CANDIDATES_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Where a context goes on after its last whole block.

    Attributes:
        parent: That block, ``None`` at the start.
        token_ids: What follows, at most a block.
        fingerprint: Whose blocks.
        usable_tokens: From a stored block's length and how many of its first tokens agree to how
            many of them serve.
        known_tokens: How many are known elsewhere; only what serves more is read.
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
        store: Where blocks come from.
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
        """Read the blocks of one context, in its order.

        Reading stops at the first block that is missing or rejected, because what follows is of no
        use without it, and where ``load_bytes`` is reached. The blocks cannot be evicted while
        they wait to be read. A load that is cancelled before its turn is not read at all.

        Returns:
            As many results as hashes; ``None`` instead if too many loads wait: compute, then.
        """
        return self._enqueue(tuple(hashes), partial(self._read, tuple(hashes), fingerprint))

    def load_continuation(self, wanted: Continuation) -> Future[list[Loaded]] | None:
        """Read the block, whole or tail, that serves most of how a context goes on.

        Returns:
            That block, or an empty list if none serves; otherwise as ``load``.
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
        """Cancel what waits and end the thread; whether that was done in time."""
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
        """Serve the next load; ``False`` at the end. Holds no block when it returns."""
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
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the result
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
            agreeing = _agreeing(token_ids, wanted.token_ids)
            usable = wanted.usable_tokens(len(token_ids), agreeing)
            if usable > max(wanted.known_tokens, best[0] if best else 0):
                best = usable, info.hash
        return [] if best is None else self._read([best[1]], wanted.fingerprint)


def _agreeing(stored: Sequence[int], wanted: Sequence[int]) -> int:
    """Return how many tokens both start with."""
    count = 0
    for one, other in zip(stored, wanted, strict=False):
        if one != other:
            break
        count += 1
    return count
