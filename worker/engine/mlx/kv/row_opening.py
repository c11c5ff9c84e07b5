"""Prepares the caches of a row: room for its prompt, then the tokens that memory and disk have.

Tokens are written straight into the row's own buffers, in small steps between the decode steps of
other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from domain.kv.checkpoints import CacheCheckpoint
from domain.kv.contexts import Context, Piece
from domain.kv.hashing import BlockHash, common_tokens
from domain.kv.spec import ModelCacheSpec
from ops.blockstore.blocks import StoredBlock
from worker.cachestore.read_ahead import BlockRead, Continuation
from worker.cachestore.tier import DiskTier
from worker.engine.mlx.kv.codec import BadPayload, decoded
from worker.engine.mlx.kv.context_caches import MOVED_AT_ONCE_BYTES, ContextCaches, ContextStore
from worker.engine.mlx.kv.row_target import shares_memory
from worker.engine.mlx.kv.start_plan import DiskEnd, StartPlan, StartPlanner

_log = structlog.get_logger(__name__)

#: A row whose disk provides nothing for this many seconds computes the rest.
STALLED_S_MAX = 5.0
#: Checkpoints that are tried after one turned out to be missing on the disk.
ENDS_TRIED_MAX = 3

#: Yields ``True`` after a step of work, ``False`` where it waits for the disk.
Steps = Generator[bool, None, int]


@dataclass(slots=True, eq=False, kw_only=True)
class RowOpening:
    """One row that is being opened. Belongs to the engine thread.

    Attributes:
        fingerprints: Fingerprint of blocks, and of checkpoints.
        token_ids: The prompt without its last token.
        plan: What the row starts from; its sources are pinned until the opening ends.
        slots: Room of the row in tokens.
        disk_tokens: Tokens that were read from the disk so far.
        tail: Name and end of the partial block that was read whole.
    """

    store: ContextStore
    planner: StartPlanner
    fingerprints: tuple[str, str]
    tier: DiskTier | None
    now_s: Callable[[], float]
    caches: ContextCaches
    token_ids: Sequence[int]
    plan: StartPlan
    slots: int
    steps: Steps = field(init=False)
    disk_tokens: int = field(default=0, init=False)
    tail: tuple[BlockHash, int] | None = field(default=None, init=False)

    # --- steps -------------------------------------------------------------------------------

    def __post_init__(self) -> None:
        self.steps = self.run()

    def run(self) -> Steps:
        """Return the steps; their result is the number of restored tokens."""
        caches, plan = self.caches, self.plan
        for _ in caches.reserve(self.slots):
            yield True
        at = 0
        for piece in plan.pieces:
            if piece.context is plan.adopted and piece.start == 0 and plan.adopted is not None:
                at = piece.stop
            elif piece.context is None:
                at = yield from self._read_blocks(piece)
            else:
                yield from self._copy(piece)
                at = piece.stop
            if at < piece.stop:
                break
        if self._spec.has_ends:
            at = yield from self._restore_ends(at)
        elif plan.tail_on_disk and at == sum(one.stop - one.start for one in plan.pieces):
            at = yield from self._read_tail(at)
        caches.set_tokens(at)
        return at

    @property
    def _spec(self) -> ModelCacheSpec:
        return self.store.pool.spec

    def _copy(self, piece: Piece) -> Iterator[bool]:
        assert piece.context is not None, "the disk is read"
        source = self.store.caches(piece.context)
        size = self._spec.block_tokens
        block_bytes = max(1, self._spec.full_bytes(size))
        step = size * max(1, MOVED_AT_ONCE_BYTES // block_bytes)
        for start in range(piece.start, piece.stop, step):
            # The row may have been parked in the meantime, in the same buffers.
            for _ in self.caches.copy_from(source, start, min(start + step, piece.stop)):
                yield True

    def _read_blocks(self, piece: Piece) -> Steps:
        """Read whole blocks, of the last one perhaps only the first tokens."""
        size = self._spec.block_tokens
        names = self.plan.names[piece.start // size : self._spec.blocks_for(piece.stop)]
        at = piece.start
        for block in self._read_all(names, self.fingerprints[0], piece.start):
            if block is None:
                yield False
                continue
            tokens = min(size, piece.stop - at)
            if not (block.is_placed or self._write(block, at, tokens)):
                return at
            at += tokens
            self.disk_tokens += tokens
            yield True
        return at

    def _write(self, block: StoredBlock, at: int, tokens: int) -> bool:
        try:
            arrays = decoded(self._spec, block.payload, block.meta.tokens)
        except BadPayload as error:
            self._reject(block, error)
            return False
        self.caches.write(arrays, at, tokens)
        return True

    def _read_tail(self, at: int) -> Steps:
        """Read the block, whole or partial, that covers most of the tokens after whole blocks."""
        assert self.tier is not None, "only a disk has tails"
        size = self._spec.block_tokens
        start = at - at % size
        wanted = Continuation(
            parent=self.plan.names[start // size - 1] if start else None,
            token_ids=self.token_ids[start : start + size],
            fingerprint=self.fingerprints[0],
            known_tokens=at - start,
        )
        for block in self._read(partial(self.tier.read_continuation, wanted)):
            if block is None:
                yield False
                continue
            tokens = common_tokens(block.token_ids, wanted.token_ids)
            if tokens > at - start and self._write(block, start, tokens):
                self.disk_tokens += start + tokens - at
                at = start + tokens
                if tokens == block.meta.tokens < size:
                    self.tail = block.meta.hash, at
        return at

    def _restore_ends(self, at: int) -> Steps:
        """Set windows and states; return the position from which they go on."""
        end: CacheCheckpoint | DiskEnd | Context | None = self.plan.end
        position = self.plan.tokens
        if end is None and self.plan.adopted is not None and position == at:
            return at
        for _ in range(ENDS_TRIED_MAX):
            if end is None or position > at + self._spec.block_tokens:
                position, end = self.planner.end_before(self.token_ids, self.plan.names, at)
            if end is None:
                break
            if (yield from self._restore_end(end, position, at)):
                return position
            end = None
        self.caches.drop_ends()
        return 0

    def _restore_end(
        self, end: CacheCheckpoint | DiskEnd | Context, position: int, at: int
    ) -> Generator[bool, None, bool]:
        if isinstance(end, DiskEnd):
            return (yield from self._read_end(end, at))
        if position > at:
            return False
        if isinstance(end, Context):
            held = len(end.token_ids)
            steps = self.caches.copy_ends(self.store.caches(end), position, held)
        else:
            self.store.pool.touch(end)
            steps = self.caches.set_ends(self.store.ends(end), position)
        for _ in steps:
            yield True
        return True

    def _read_end(self, end: DiskEnd, at: int) -> Generator[bool, None, bool]:
        for block in self._read_all([end.name], self.fingerprints[1]):
            if block is None:
                yield False
                continue
            tail = block.meta.tokens
            try:
                arrays = decoded(self._spec, block.payload, tail, position=end.position)
            except BadPayload as error:
                self._reject(block, error)
                return False
            if end.position > at:
                if tail == self._spec.block_tokens or at < end.start:
                    return False
                self.caches.write(arrays, end.start, tail)
                self.disk_tokens += end.position - at
            for _ in self.caches.set_ends(arrays.tensors, end.position):
                yield True
            return True
        return False

    def _reject(self, block: StoredBlock, error: BadPayload) -> None:
        assert self.tier is not None, "the block was read from it"
        self.tier.reject(block.meta.hash, str(error))

    # --- reads -------------------------------------------------------------------------------

    def _read_all(
        self,
        names: Sequence[BlockHash],
        fingerprint: str,
        start: int | None = None,
    ) -> Iterator[StoredBlock | None]:
        """Yield the blocks of ``names`` until one is missing; ``None`` while the disk reads.

        With ``start`` they are placed into the row's slots from there on, where that is possible.
        """
        assert self.tier is not None, "the plan names a disk"
        targets = None
        if start is not None and shares_memory():
            targets = self.caches.target(start)
        return self._read(partial(self.tier.read, names, fingerprint, targets))

    def _read(self, start: Callable[[], BlockRead | None]) -> Iterator[StoredBlock | None]:
        """Yield the blocks of a read until one is missing; ``None`` while the disk reads."""
        waits_since_s = self.now_s()
        while (read := start()) is None:
            if self.now_s() - waits_since_s > STALLED_S_MAX:  # too many reads are open
                return
            yield None
        try:
            yield from self._blocks(read)
        finally:
            read.cancel()

    def _blocks(self, read: BlockRead) -> Iterator[StoredBlock | None]:
        progress, progressed_s = read.progress, self.now_s()
        # After a useless block other threads may still write to the row's buffers.
        while not (read.done and read.is_read):
            taken = read.take(1)
            if taken and isinstance(taken[0], StoredBlock):
                yield taken[0]
            elif read.progress != progress:
                progress, progressed_s = read.progress, self.now_s()
            elif self.now_s() - progressed_s > STALLED_S_MAX:
                _log.warning("restore_stalled", blocks=len(read.names), taken=read.taken)
                return
            else:
                yield None
