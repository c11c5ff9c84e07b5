"""Saves contexts to the disk, block by block, whenever the writer has room.

A block is copied out of a running row or a parked segment only when it is written, so that memory
never limits what is saved, and a slow disk delays a context but loses none of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from domain.kv.checkpoints import CacheCheckpoint, CheckpointKind
from domain.kv.contexts import Context
from domain.kv.hashing import BlockHash, pack_ids
from ops.blockstore.blocks import NewBlock
from worker.cachestore.reports import Manifest
from worker.cachestore.tier import DiskTier
from worker.cachestore.writer import WriteOutcome, WriteState
from worker.engine.mlx.kv.codec import BlockArrays, to_raw
from worker.engine.mlx.kv.context_caches import ContextStore

#: Seconds between two looks at the writer while a context is saved at once.
FLUSH_S = 0.05

#: States in which the disk takes nothing for a while.
STOPPED = frozenset((WriteState.PAUSED, WriteState.FULL, WriteState.OFF))
_REPEATED = frozenset((WriteOutcome.FAILED, WriteOutcome.NO_ROOM))


@dataclass(slots=True, kw_only=True)
class ContextEnd:
    """A position of a context that is saved beside its whole blocks.

    Attributes:
        position: Number of tokens before it.
        checkpoint: What windows and states remember there; ``None`` for a tail of a model that has
            only full-attention layers.
        is_live: Whether windows and states are copied from the parked context itself.
        drops: Whether the checkpoint is freed once it is written.
        replaces: Checkpoints that are deleted from the disk once it has this one.
        on_saved: Receives the manifest once everything before is on the disk; ``None`` for no
            report.
        name: Hash of the tail or checkpoint, once it is submitted.
    """

    position: int
    checkpoint: CacheCheckpoint | None = None
    is_live: bool = False
    drops: bool = False
    replaces: tuple[BlockHash, ...] = ()
    on_saved: Callable[[Manifest], None] | None = None
    name: BlockHash | None = None
    write: Future[WriteOutcome] | None = None


@dataclass(slots=True, eq=False)
class _Work:
    """What is still to be saved of one context.

    Attributes:
        block: Index of the first whole block that may be missing on the disk.
        writes: Blocks that are being written, by index.
    """

    context: Context
    block: int = 0
    writes: dict[int, Future[WriteOutcome]] = field(default_factory=dict)
    ends: deque[ContextEnd] = field(default_factory=deque)


class ContextSaver:
    """Writes the blocks and ends of contexts behind the engine's back.

    Args:
        fingerprints: Fingerprint of blocks, and of checkpoints.
    """

    def __init__(
        self,
        store: ContextStore,
        tier: DiskTier,
        fingerprints: tuple[str, str],
    ) -> None:
        self._store = store
        self._pool = store.pool
        self._tier = tier
        self._fingerprint, self._checkpoint_fingerprint = fingerprints
        self._size = store.pool.spec.block_tokens
        self._works: dict[Context, _Work] = {}
        #: Writes of checkpoints whose ends were given up.
        self._given_up: list[ContextEnd] = []
        #: Whether ``pump`` found nothing to write, and nothing is being written.
        self._is_stuck = False

    def add(self, context: Context) -> None:
        """Save the blocks of a context from now on."""
        self._works.setdefault(context, _Work(context))

    def add_end(self, context: Context, end: ContextEnd) -> None:
        """Save a position of a context once the blocks before it are saved."""
        if end.checkpoint is not None:
            self._pool.share(end.checkpoint)
        self._works.setdefault(context, _Work(context)).ends.append(end)

    def cut(self, context: Context, tokens: int) -> None:
        """Cut the ends after ``tokens``, which the context no longer holds, to whole blocks."""
        work = self._works.get(context)
        if work is None:
            return
        for end in work.ends:
            if end.position > tokens:
                self._to_blocks(end, tokens)
        work.block = min(work.block, tokens // self._size)
        work.writes = {at: one for at, one in work.writes.items() if at < work.block}

    def cancel(self, context: Context, checkpoint: CacheCheckpoint) -> None:
        """Do not save a checkpoint; its report is kept, and does not name it."""
        work = self._works.get(context)
        for end in () if work is None else work.ends:
            if end.checkpoint is checkpoint:
                end.drops = True
                self._to_blocks(end, end.position)

    def remove(self, context: Context) -> None:
        """Save no more of a context; its reports name what the disk has."""
        work = self._works.pop(context, None)
        for end in () if work is None else work.ends:
            self._unpin(end)
            if end.on_saved is not None:
                end.name = None
                self._report(context, end)

    def pump(self, is_due: Callable[[], bool] | None = None) -> bool:
        """Submit what the writer has room for; return whether something is left to save.

        Args:
            is_due: Whether other work is due; then the rest is left for the next call. ``None``
                where all is to be saved now: the most recently used context comes first then,
                since it would be freed last.
        """
        given_up, self._given_up = self._given_up, []
        for end in given_up:
            self._unpin(end)
        works = sorted(self._works.values(), key=lambda one: -one.context.used)
        if is_due is not None:
            # Contexts that ended come first: their manifests wait, and their memory is wanted.
            works = sorted(self._works.values(), key=lambda one: one.context.is_running)
        moved = False
        for work in works:
            # A copy for another one may have freed this one, if the disk has stopped.
            while (
                work.context in self._works and not (is_due and is_due()) and self._save_next(work)
            ):
                moved = True
            is_left = work.context in self._works
            if is_left and not work.context.is_running and self._is_done(work):
                self._pool.record_saved(work.context)
                del self._works[work.context]
        self._is_stuck = not (moved or (is_due and is_due()) or self._tier.queued)
        return any(not self._is_done(work) for work in self._works.values())

    def save_now(self, context: Context, timeout_s: float) -> None:
        """Save all of a parked context, waiting for the disk for up to ``timeout_s``."""
        for _ in range(max(1, int(timeout_s / FLUSH_S))):
            self.pump()
            if context not in self._works or self._tier.write_state() in STOPPED:
                return
            self._tier.flush(FLUSH_S)

    def _is_done(self, work: _Work) -> bool:
        return not work.ends and not work.writes and work.block >= len(work.context.names)

    def _save_next(self, work: _Work) -> bool:
        """Do the next step of saving a context; return whether there may be more to do now."""
        self._collect(work)
        whole = len(work.context.names)
        if work.ends:
            whole = min(whole, work.ends[0].position // self._size)
        if work.block < whole:
            return self._save_block(work)
        return bool(work.ends) and not work.writes and self._save_end(work)

    def _collect(self, work: _Work) -> None:
        """Remove the writes that have ended; failed ones are repeated."""
        for at, write in list(work.writes.items()):
            if write.done():
                del work.writes[at]
                if write.result() in _REPEATED:
                    work.block = min(work.block, at)

    def _save_block(self, work: _Work) -> bool:
        context, at = work.context, work.block
        name, start = context.names[at], at * self._size
        if start < context.start or self._tier.contains(name):
            work.block += 1
            return True
        parent = context.names[at - 1] if at else None
        if start > context.start and parent is not None and not self._tier.holds(parent):
            work.block -= 1  # the disk evicted it
            return True
        if not self._tier.can_write(self._pool.spec.full_bytes(self._size)):
            return False
        ids = self._pool.hasher.covered(context.token_ids[start : start + self._size])
        arrays = self._store.caches(context).read(start, start + self._size)
        block = self._block(name, parent, ids, arrays, self._fingerprint)
        write = self._write(context, block, block.nbytes)
        if write is None:
            return False
        work.writes[at] = write
        work.block += 1
        if context.tail is not None and work.block * self._size >= context.tail[1]:
            # The longer block replaces it.
            self._tier.forget([context.tail[0]])
            context.tail = None
        return True

    def _save_end(self, work: _Work) -> bool:
        end = work.ends[0]
        if end.write is None:
            make = self._end_block(work.context, end)
            if make is None:
                # No write makes a context that the disk has the latest there.
                names = work.context.names[: end.position // self._size]
                self._tier.touch(names if end.name is None else [*names, end.name])
                return self._finish_end(work, end)
            if not self._tier.can_write() or not self._copy_live(work.context, end):
                return False
            copied_bytes = self._copied_bytes(end)
            if not self._tier.can_write(copied_bytes):
                return False
            end.write = self._write(work.context, make(), copied_bytes)
        if end.write is None or not end.write.done():
            return False
        outcome, end.write = end.write.result(), None
        return outcome not in _REPEATED and self._finish_end(work, end)

    def _to_blocks(self, end: ContextEnd, tokens: int) -> None:
        """Move an end to the last whole block in the first ``tokens``."""
        self._unpin(end)
        end.checkpoint = end.name = end.write = None
        end.is_live, end.drops, end.replaces = False, False, ()
        end.position = tokens - tokens % self._size

    def _unpin(self, end: ContextEnd) -> None:
        """Release the checkpoint of an end once nothing writes it."""
        if end.checkpoint is None:
            return
        if end.write is not None and not end.write.done():
            self._given_up.append(replace(end))
            return
        self._pool.release(end.checkpoint)
        if end.drops and not end.checkpoint.users:
            self._pool.free(end.checkpoint)

    def _copied_bytes(self, end: ContextEnd) -> int:
        """Return the bytes that are copied to write an end."""
        spec = self._pool.spec
        tail_bytes = spec.full_bytes(end.position % self._size)
        if end.checkpoint is not None:
            return tail_bytes  # the checkpoint itself is written
        return tail_bytes + spec.ends_bytes(end.position)

    def _copy_live(self, context: Context, end: ContextEnd) -> bool:
        """Copy the end of a parked context to a checkpoint that is freed once it is written.

        Returns:
            Whether the end can be written: it was copied, or no other write will make room.
        """
        if end.checkpoint is not None or not end.is_live:
            return True
        assert end.name is not None, "an end that is written has a name"
        caches, held = self._store.caches(context), len(context.token_ids)
        end.drops = self._pool.checkpoints.get(end.name) is None
        end.checkpoint = self._store.add_checkpoint(
            context,
            CheckpointKind.ANSWER,
            end.position,
            lambda: caches.ends_at(end.position, held),
        )
        if end.checkpoint is None:
            return self._is_stuck
        self._pool.share(end.checkpoint)
        return True

    def _write(
        self, context: Context, block: NewBlock, copied_bytes: int
    ) -> Future[WriteOutcome] | None:
        """Enqueue a block, unless its context was forgotten meanwhile by another thread."""
        return self._pool.guarded(
            lambda: None if context.is_forgotten else self._tier.write(block, copied_bytes)
        )

    def _finish_end(self, work: _Work, end: ContextEnd) -> bool:
        work.ends.popleft()
        if end.checkpoint is not None:
            self._pool.record_saved(end.checkpoint)
        elif end.name is not None:
            work.context.tail = end.name, end.position
        self._unpin(end)
        if end.replaces:
            self._tier.forget(end.replaces)
        if end.on_saved is not None:
            self._report(work.context, end)
        return True

    def _report(self, context: Context, end: ContextEnd) -> None:
        on_saved = end.on_saved
        assert on_saved is not None, "a report is wanted"
        manifest = Manifest(
            fingerprint=self._fingerprint,
            blocks=tuple(context.names[: end.position // self._size]),
            tail=end.name,
            checkpoints=tuple(
                one.name for one in self._pool.checkpoints_of(context) if one.name != end.name
            ),
        )
        self._tier.sealed(manifest).add_done_callback(lambda one: on_saved(one.result()))

    def _end_block(self, context: Context, end: ContextEnd) -> Callable[[], NewBlock] | None:
        """Return what makes the block of an end; ``None`` if there is none."""
        if end.checkpoint is not None or end.is_live:
            return self._checkpoint_block(context, end)
        start = end.position - end.position % self._size
        if self._pool.spec.has_ends or start == end.position or start < context.start:
            return None
        parent = context.names[start // self._size - 1] if start else None
        ids = context.token_ids[start : end.position]
        end.name = self._pool.hasher.of_packed(parent, pack_ids(ids))
        if self._tier.contains(end.name):
            return None

        def make(name: BlockHash = end.name) -> NewBlock:
            arrays = self._store.caches(context).read(start, end.position)
            return self._block(name, parent, ids, arrays, self._fingerprint)

        return make

    def _checkpoint_block(self, context: Context, end: ContextEnd) -> Callable[[], NewBlock] | None:
        """As ``_end_block``, for a checkpoint in memory or the end of a parked context."""
        caches, held = self._store.caches(context), len(context.token_ids)
        named = end.checkpoint or self._pool.checkpoint_name(context, end.position)
        start, is_whole = end.position - len(named.token_ids), len(named.token_ids) == self._size
        source = context if is_whole else self._source(context, start)
        is_gone = end.checkpoint is None and not caches.can_end_at(end.position, held)
        if source is None or is_gone:
            self._to_blocks(end, end.position)
            return None
        end.name = named.name
        if self._tier.contains(named.name):
            return None

        def make() -> NewBlock:
            if end.checkpoint is None:
                tensors = caches.ends_at(end.position, held)
            else:
                tensors = dict(self._store.ends(end.checkpoint))
            if not is_whole:
                tensors |= self._store.caches(source).read(start, end.position).tensors
            arrays = BlockArrays(len(named.token_ids), tensors)
            fingerprint = self._checkpoint_fingerprint
            return self._block(named.name, named.parent, named.token_ids, arrays, fingerprint)

        return make

    def _source(self, context: Context, start: int) -> Context | None:
        """Return a context that has the tokens of ``context`` in the block from ``start`` on."""
        if start >= context.start:
            return context
        return self._pool.holder(context.names[start // self._size])

    def _block(
        self,
        name: BlockHash,
        parent: BlockHash | None,
        token_ids: Sequence[int],
        arrays: BlockArrays,
        fingerprint: str,
    ) -> NewBlock:
        return NewBlock(
            hash=name,
            parent=parent,
            fingerprint=fingerprint,
            token_ids=token_ids,
            payload=to_raw(arrays),
        )
