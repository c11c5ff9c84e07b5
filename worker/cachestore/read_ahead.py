"""Read-ahead: threads find, read and verify blocks, and the engine takes each."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import structlog

from domain.kv.hashing import BlockHash, common_tokens
from ops.blockstore.blocks import BlockTarget, Rejected, StoredBlock, TensorEntry
from ops.blockstore.store import BlockStore

#: Blocks whose tokens are compared to find the one that covers most of a continuation.
CANDIDATES_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What follows a context's last whole block.

    Attributes:
        parent: Hash of that block, ``None`` at the start.
        token_ids: The tokens that follow, at most one block.
        known_tokens: Tokens that memory covers already; only a block that covers more is read.
    """

    parent: BlockHash | None
    token_ids: Sequence[int]
    fingerprint: str
    known_tokens: int = 0


def longest_usable(store: BlockStore, wanted: Continuation) -> tuple[BlockHash, ...]:
    """Return the name of that block, whole or partial; nothing if none covers more than is known.

    Opens the files of at most ``CANDIDATES_MAX`` blocks.
    """
    best: tuple[int, BlockHash] | None = None
    for info in store.children(wanted.parent, wanted.fingerprint, limit=CANDIDATES_MAX):
        token_ids = store.token_ids(info.hash) or ()
        usable = common_tokens(token_ids, wanted.token_ids)
        if usable > max(wanted.known_tokens, best[0] if best else 0):
            best = usable, info.hash
    return () if best is None else (best[1],)


_log = structlog.get_logger(__name__)

#: The result for one block; ``None`` for a missing block, or one that could not be read.
Loaded: TypeAlias = StoredBlock | Rejected | None
#: Finds the names of the blocks to be read; opens files.
Search: TypeAlias = Callable[[], tuple[BlockHash, ...]]
#: Returns the memory for the tensors of a block, by its index in a read.
Targets: TypeAlias = Callable[[int], BlockTarget]
#: Stands for the index of a block where the names have to be found first.
_SEARCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLimits:
    """Bounds of the read-ahead.

    Attributes:
        reads: Most reads that are open at once.
        ahead_bytes: Most bytes that are read and not copied, over all reads.
        threads: Threads that read and verify; one hashes while the other one waits for the disk.
    """

    reads: int = 64
    ahead_bytes: int = 256 * 10**6
    threads: int = 2


class BlockRead:
    """The blocks of one context, in order. Made by ``ReadAhead``; for one consumer.

    Reading stops after the first block that is missing or rejected, because later blocks are
    useless without it; its result is the last one. The consumer takes all results or cancels.
    """

    def __init__(
        self,
        owner: ReadAhead,
        names: tuple[BlockHash, ...],
        fingerprint: str,
        search: Search | None = None,
        targets: Targets | None = None,
    ) -> None:
        self._owner = owner
        self.fingerprint = fingerprint
        # The owner's lock guards what follows.
        self.names = names
        #: Finds the names on a reading thread; ``None`` once they are known.
        self.search = search
        #: Dropped after the last file is read, so that nothing holds the consumer's memory.
        self.targets = targets
        self.started = 0
        self.running = 0
        #: Number of results that come; lower than the number of names after a failure.
        self.total = len(names)
        #: Results that were not taken, and their sizes, by index.
        self.ready: dict[int, tuple[Loaded, int]] = {}
        self.taken = 0
        self.lent_bytes = 0
        self.held_bytes = 0
        self.is_pinned = True

    def take(self, count: int | None = None) -> list[Loaded]:
        """Return the next results, at most ``count``; never waits.

        The results of the call before no longer count towards the bound.
        """
        return self._owner.take(self, count)

    @property
    def done(self) -> bool:
        """Whether nothing more comes, and ``take`` was called after the last result."""
        return self.is_over and not self.lent_bytes

    def cancel(self) -> None:
        """Read no further and drop what was not taken; of no effect at the end."""
        self._owner.cancel(self)

    def wait(self, timeout_s: float) -> bool:
        """Wait until ``take`` returns something or nothing more comes; return whether in time.

        As after ``take``, earlier results no longer count.
        """
        return self._owner.wait(self, timeout_s)

    @property
    def progress(self) -> int:
        """A number that changes while threads read bytes, for this read or for another."""
        return self._owner.progress

    @property
    def is_over(self) -> bool:
        """Whether every result was taken."""
        return self.search is None and self.taken >= self.total

    @property
    def is_read(self) -> bool:
        """Whether no file is being read and none is left."""
        return self.search is None and self.started >= self.total and not self.running


class ReadAhead:
    """A bounded number of reads, and the threads that serve them in turns."""

    def __init__(self, store: BlockStore, *, limits: ReadLimits | None = None) -> None:
        self._store = store
        self._limits = limits or ReadLimits()
        self._ahead_bytes = self._limits.ahead_bytes
        self._changed = threading.Condition()
        #: Open reads; the next one to be served is the first.
        self._reads: list[BlockRead] = []
        self._held_bytes = 0
        #: Changes with each part that is read; threads count without a lock.
        self.progress = 0
        self._closing = False
        # Daemon threads, so that a hanging disk does not keep the process alive.
        self._threads = [
            threading.Thread(target=self._run, name=f"block-reader-{number}", daemon=True)
            for number in range(self._limits.threads)
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def close(self, timeout_s: float) -> bool:
        """Cancel all reads and end the threads; return whether they ended in time."""
        with self._changed:
            self._closing = True
            left = list(self._reads)
            self._changed.notify_all()
        for read in left:
            self.cancel(read)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout_s)
        return not any(thread.is_alive() for thread in self._threads)

    def limit_bytes(self, ahead_bytes: int) -> None:
        """Set the most bytes that are read and not copied, from now on."""
        with self._changed:
            self._ahead_bytes = ahead_bytes
            self._changed.notify_all()

    def held_bytes(self) -> int:
        """Return the bytes that are being read, or are read and not copied."""
        return self._held_bytes

    def read(
        self, names: Sequence[BlockHash], fingerprint: str, targets: Targets | None = None
    ) -> BlockRead | None:
        """Start to read the blocks of one context, in order.

        The blocks are pinned against eviction until they are read.

        Args:
            targets: Memory for their tensors. Threads may write to it until ``is_read``, also after
                ``cancel``.

        Returns:
            ``None`` if too many reads are open.
        """
        read = BlockRead(self, tuple(names), fingerprint, targets=targets)
        return read if read.is_over or self._open(read) else None

    def read_continuation(self, wanted: Continuation) -> BlockRead | None:
        """Start to read the stored block that covers most of a context's continuation.

        The block is found on a reading thread, because files of candidates are opened.

        Returns:
            A read of one block, or of none if none is usable; ``None`` if too many reads are open.
        """
        search = partial(longest_usable, self._store, wanted)
        read = BlockRead(self, (), wanted.fingerprint, search)
        return read if self._open(read) else None

    def _open(self, read: BlockRead) -> bool:
        with self._changed:
            if self._closing or len(self._reads) >= self._limits.reads:
                return False
            self._store.pin(read.names)
            self._reads.append(read)
            self._changed.notify_all()
        return True

    # --- for BlockRead ---------------------------------------------------------------------

    def take(self, read: BlockRead, count: int | None) -> list[Loaded]:
        """See ``BlockRead.take``."""
        with self._changed:
            self._take_back(read)
            results: list[Loaded] = []
            while read.taken in read.ready and (count is None or len(results) < count):
                result, size_bytes = read.ready.pop(read.taken)
                read.taken += 1
                read.lent_bytes += size_bytes
                results.append(result)
            self._close_if_done(read)
        return results

    def cancel(self, read: BlockRead) -> None:
        """See ``BlockRead.cancel``."""
        with self._changed:
            read.search, read.total = None, read.taken
            self._drop_after_end(read)
            self._take_back(read)
            self._close_if_done(read)
            if not read.running:
                read.targets = None
                self._unpin(read)
            self._changed.notify_all()

    def wait(self, read: BlockRead, timeout_s: float) -> bool:
        """See ``BlockRead.wait``."""
        with self._changed:
            self._take_back(read)
            self._close_if_done(read)
            return self._changed.wait_for(
                lambda: read.taken in read.ready or read.is_over, timeout_s
            )

    # --- the reading threads ---------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._next()) is not None:
            self._serve(*job)

    def _next(self) -> tuple[BlockRead, int, int] | None:
        """Return a read, and index and size of its block to be read now; ``None`` at the end."""
        with self._changed:
            while not self._closing:
                job = self._pick()
                if job is not None:
                    return job
                self._changed.wait()
        return None

    def _pick(self) -> tuple[BlockRead, int, int] | None:
        share_bytes = self._ahead_bytes // (1 + len(self._reads))
        for place, read in enumerate(self._reads):
            if read.search is not None and not read.running:
                read.running = 1
                return read, _SEARCH, 0
            if read.started >= read.total:
                continue
            is_placed = read.targets is not None
            size_bytes = 0 if is_placed else self._store.file_bytes(read.names[read.started])
            ahead_bytes = self._held_bytes + size_bytes
            fits = is_placed or not self._held_bytes or ahead_bytes <= self._ahead_bytes
            if read.held_bytes and (not fits or read.held_bytes + size_bytes > share_bytes):
                continue
            if not fits:
                # Smaller blocks of other reads would keep this one waiting for ever.
                return None
            self._reads.append(self._reads.pop(place))
            read.started += 1
            read.running += 1
            read.held_bytes += size_bytes
            self._held_bytes += size_bytes
            return read, read.started - 1, size_bytes
        return None

    def _find(self, read: BlockRead) -> None:
        """Find the names of a read, which is cancelled meanwhile if its search is gone."""
        search = read.search
        names: tuple[BlockHash, ...] = ()
        try:
            names = () if search is None else search()
        except Exception as error:  # noqa: BLE001 - the context is computed instead
            _log.warning("search_failed", why=repr(error))
        with self._changed:
            read.running = 0
            if read.search is not None:
                read.search, read.names, read.total = None, names, len(names)
                self._store.pin(names)
            self._close_if_done(read)
            self._changed.notify_all()

    def _serve(self, read: BlockRead, index: int, size_bytes: int) -> None:
        if index == _SEARCH:
            self._find(read)
            return
        result: Loaded = None
        try:
            result = self._get(read, index)
        except Exception as error:  # noqa: BLE001 - the context is computed instead
            _log.warning("read_failed", why=repr(error))
        with self._changed:
            self.progress += 1
            read.running -= 1
            read.ready[index] = result, size_bytes
            if not isinstance(result, StoredBlock):
                read.total = min(read.total, index + 1)
            if read.is_read:
                read.targets = None
            self._drop_after_end(read)
            self._close_if_done(read)
            self._changed.notify_all()
        if read.is_read:
            self._store.touch(read.names[: read.total])
            with self._changed:
                self._unpin(read)

    def _get(self, read: BlockRead, index: int) -> Loaded:
        name, targets = read.names[index], read.targets
        if targets is None:
            return self._store.get(name, read.fingerprint)
        target = targets(index)

        def counted(tensors: Sequence[TensorEntry]) -> Iterable[memoryview] | None:
            parts = target(tensors)
            return None if parts is None else self._counted(parts)

        return self._store.get(name, read.fingerprint, counted)

    def _counted(self, parts: Iterable[memoryview]) -> Iterator[memoryview]:
        for part in parts:
            yield part
            self.progress += 1

    # --- under the lock --------------------------------------------------------------------

    def _take_back(self, read: BlockRead) -> None:
        self._credit(read, read.lent_bytes)
        read.lent_bytes = 0

    def _drop_after_end(self, read: BlockRead) -> None:
        for index in [index for index in read.ready if index >= read.total]:
            self._credit(read, read.ready.pop(index)[1])

    def _credit(self, read: BlockRead, size_bytes: int) -> None:
        read.held_bytes -= size_bytes
        self._held_bytes -= size_bytes
        if size_bytes:
            self._changed.notify_all()

    def _close_if_done(self, read: BlockRead) -> None:
        if read.done and read in self._reads:
            self._reads.remove(read)
            self._changed.notify_all()

    def _unpin(self, read: BlockRead) -> None:
        if read.is_pinned:
            read.is_pinned = False
            self._store.unpin(read.names)
