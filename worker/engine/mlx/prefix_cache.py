"""Restores sequences from cached blocks, and caches the blocks of running sequences.

Blocks are copied out of a running sequence at each block boundary, before the last token of its
prompt, and at its end. A sequence pins the blocks that it restored or added until it leaves. Then
they stay cached until their memory is needed; the end of a context is evicted before its start.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import mlx.core as mx

from domain.kv.hashing import ID_BYTES, BlockHash, BlockHasher, pack_ids
from domain.kv.pool import BlockId
from domain.kv.spec import BLOCK_TOKENS
from domain.values import WaitingFor
from worker.cachestore.manifest import Manifest
from worker.cachestore.reports import ContextSaved, ContextStarted, OnContext, ignore
from worker.cachestore.tier import DiskTier, Storage
from worker.engine.mlx.kv.codec import BlockCodec
from worker.engine.mlx.kv.computation import computation_of
from worker.engine.mlx.kv.gather import gather
from worker.engine.mlx.kv.live import Sequences, cut_at_borders, extract_live
from worker.engine.mlx.kv.memory import BlockMemory, PinnedPrefix
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.persistence import Persistence, fingerprint_of_blocks
from worker.engine.mlx.tracked_sequence import StartPoint, TrackedSequence
from worker.engine.ports import CachedPrefix

#: Restoring fewer tokens than this takes longer than computing them.
RESTORED_TOKENS_MIN = 16


class PrefixCache:
    """The cached prefixes of one model.

    Belongs to the engine thread, except ``cached_prefix`` and ``forget``.

    Args:
        network: An mlx-lm model.
        fingerprint: The model's fingerprint.
        budget_bytes: Bytes for the blocks in memory.
        block_tokens: Tokens in a block.
        tier: Stores blocks on the disk; ``None`` keeps them in memory only.
        on_context: Receives reports of restored and saved contexts; must not block.

    Raises:
        UnsupportedCache: The model's caches cannot be cut into blocks and restored.
    """

    def __init__(
        self,
        network: Any,  # noqa: ANN401 - mlx-lm ships no types
        fingerprint: str,
        budget_bytes: int,
        block_tokens: int = BLOCK_TOKENS,
        *,
        tier: DiskTier | None = None,
        on_context: OnContext = ignore,
    ) -> None:
        self._network = network
        self._spec = probe_spec(network, block_tokens)
        codec = BlockCodec(self._spec, Storage.EXACT if tier is None else tier.storage)
        computation = computation_of(network)
        self.fingerprint = fingerprint_of_blocks(fingerprint, self._spec, codec, computation)
        self._hasher = BlockHasher(self.fingerprint)
        self._block_tokens = block_tokens
        self._tracked: dict[int, TrackedSequence] = {}
        self._pending: set[BlockHash] = set()
        #: Waiting prompts, each with the block hash that it waits for, by ``id`` of their tokens.
        self._waiting: dict[int, tuple[Sequence[int], BlockHash]] = {}
        self.memory = BlockMemory(self.fingerprint, self._spec, budget_bytes)
        self._disk: Persistence | None = None
        if tier is not None:
            self._disk = Persistence(tier, self.memory, self.fingerprint, self._spec, codec)
        self._on_context = on_context

    def cached_prefix(self, token_ids: Sequence[int]) -> CachedPrefix:
        """Return how many tokens of a prompt are cached at the moment; from any thread."""
        in_memory = self.memory.known_tokens(token_ids[:-1])
        on_disk = 0 if self._disk is None else self._disk.known_tokens(token_ids[:-1])
        tokens = max(in_memory, on_disk)
        if tokens < RESTORED_TOKENS_MIN:
            return CachedPrefix()
        return CachedPrefix(tokens, "disk" if tokens > in_memory else "ram", in_memory)

    def must_wait(self, token_ids: Sequence[int]) -> WaitingFor | None:
        """Return ``PREFIX`` or ``DISK`` while blocks of this prompt are being computed or read.

        A call with the same object as before is cheap until the answer may have changed.
        """
        if self._is_being_computed(token_ids):
            return WaitingFor.PREFIX
        return WaitingFor.DISK if self._disk and self._disk.must_wait(token_ids) else None

    def _is_being_computed(self, token_ids: Sequence[int]) -> bool:
        if not self._pending:
            self._waiting.clear()
            return False
        tokens, awaited = self._waiting.get(id(token_ids), (None, None))
        if tokens is token_ids and awaited in self._pending:
            return True
        self._waiting.pop(id(token_ids), None)
        for name in self._names(token_ids[:-1]):
            if name in self._pending:
                self._waiting[id(token_ids)] = token_ids, name
                return True
            if name not in self.memory:
                return False
        return False

    def prepare_start(
        self,
        token_ids: Sequence[int],
        sequences: Sequences,
        tokens_max: int | None = None,
    ) -> StartPoint:
        """Restore the cached prefix of a prompt; ``track`` or ``unpin`` must follow.

        Args:
            token_ids: The prompt.
            sequences: The running sequences that it will join.
            tokens_max: Most tokens to restore; ``None`` for no limit.
        """
        started_s = time.monotonic()
        restore = None if self._disk is None else self._disk.take(token_ids)
        diverged_at = self.memory.diverged_at(token_ids[:-1])
        pinned = self.memory.pin(token_ids[:-1][:tokens_max], RESTORED_TOKENS_MIN)
        if self._disk is not None and restore is not None:
            started_s = restore.started_s
            self._disk.release(restore)
        try:
            caches = self._gather_caches(pinned, sequences) if pinned.tokens else None
        except Exception:
            self.unpin(pinned)
            raise
        return StartPoint(
            segments=cut_at_borders(token_ids[pinned.tokens :], pinned.tokens, self._block_tokens),
            caches=caches,
            tokens=list(token_ids[: pinned.tokens]),
            pinned=pinned,
            disk_tokens=0 if restore is None else min(restore.disk_tokens, pinned.tokens),
            diverged_at=diverged_at,
            took_ms=round(1000 * (time.monotonic() - started_s), 3),
        )

    def unpin(self, pinned: PinnedPrefix) -> None:
        """Unpin the blocks of a sequence that did not join."""
        self.memory.release(pinned.ids)
        if pinned.tail_id is not None:
            self.memory.release([pinned.tail_id])

    def track(self, uid: int, token_ids: Sequence[int], start: StartPoint, label: str = "") -> None:
        """Start to cache the blocks of a sequence that has joined, and report its start."""
        pinned = start.pinned
        if pinned.tail_id is not None:
            self.memory.release([pinned.tail_id])
        sequence = TrackedSequence(
            start=pinned.tokens,
            prompt_tokens=len(token_ids),
            tokens=pinned.tokens,
            next_boundary=0,
            names=list(pinned.names),
            ids=list(pinned.ids),
            label=label,
        )
        sequence.next_boundary = self._next_boundary(sequence)
        names = tuple(self._names(token_ids[:-1]))
        sequence.pending = {
            name
            for name in names[len(pinned.names) :]
            if name not in self._pending and name not in self.memory
        }
        self._pending |= sequence.pending
        self._tracked[uid] = sequence
        self._on_context(
            ContextStarted(
                label=label,
                fingerprint=self.fingerprint,
                names=names[: (len(token_ids) - 1) // self._block_tokens],
                block_tokens=self._block_tokens,
                prompt_tokens=len(token_ids),
                restored_tokens=pinned.tokens,
                disk_tokens=start.disk_tokens,
                diverged_at=start.diverged_at,
                took_ms=start.took_ms,
            )
        )

    def start_of(self, uid: int) -> int:
        """Return how many tokens of a sequence were restored."""
        sequence = self._tracked.get(uid)
        return 0 if sequence is None else sequence.start

    def advance(self, uid: int, sequences: Sequences, *, tokens: int) -> None:
        """Set how many tokens of a sequence its caches hold, and cache complete blocks."""
        sequence = self._tracked[uid]
        sequence.tokens = tokens
        if tokens < sequence.next_boundary:
            return
        if sequence.is_caching:
            self._cache_complete_blocks(uid, sequence, sequences)
        sequence.next_boundary = self._next_boundary(sequence)

    def advance_one(self, uid: int, sequences: Sequences) -> None:
        """Count one decoded token; see ``advance``."""
        self.advance(uid, sequences, tokens=self._tracked[uid].tokens + 1)

    def end(self, uid: int, sequences: Sequences | None = None) -> None:
        """Stop tracking a sequence and unpin its blocks.

        Args:
            uid: The sequence.
            sequences: Where given, the sequence is still in it, and its last blocks are cached and
                reported.
        """
        sequence = self._tracked.get(uid)
        if sequence is None:
            return
        if (
            sequences is not None
            and sequence.is_caching
            and sequence.tokens >= sequence.prompt_tokens
        ):
            self._persist_blocks(uid, sequence, sequences)
            tail = self._cache_tail(uid, sequence, sequences)
            self._report_cached(sequence, tail)
        del self._tracked[uid]
        self._drop_pending(sequence)
        # Blocks are evicted in the order of release, and a tail is useless without its parents.
        if sequence.tail is not None:
            self.memory.release([sequence.tail[1]])
        self.memory.release(sequence.ids)

    def release_waiting(self) -> bool:
        """Unpin the blocks of waiting prompts; return whether there were any."""
        return self._disk is not None and self._disk.release_waiting()

    def release_blocks(self, uid: int) -> bool:
        """Unpin the blocks of a running sequence and cache no more of it.

        Returns:
            Whether it had pinned any.
        """
        sequence = self._tracked[uid]
        ids = [] if sequence.tail is None else [sequence.tail[1]]
        pinned = [*sequence.ids, *ids]
        sequence.ids, sequence.tail, sequence.is_caching = [], None, False
        self._drop_pending(sequence)
        self.memory.release(pinned)
        return bool(pinned)

    def end_all(self) -> None:
        """Stop tracking all sequences, without caching their last blocks."""
        for uid in list(self._tracked):
            self.end(uid)

    def forget(self, names: Sequence[BlockHash]) -> Future[int] | None:
        """Delete blocks in memory and on disk; from any thread.

        A running sequence writes its blocks again when it ends, so cancel it first.

        Returns:
            The number of blocks deleted on disk or in the write queue; ``None`` without a disk.
        """
        for name in names:
            self.memory.forget(name)
        return None if self._disk is None else self._disk.forget(names)

    def close(self) -> None:
        """Drop all sequences and blocks; ``cached_prefix`` returns nothing from then on."""
        self.end_all()
        self._waiting.clear()
        if self._disk is not None:
            self._disk.close()
        self.memory.close()

    def _gather_caches(self, pinned: PinnedPrefix, sequences: Sequences) -> list[Any]:
        blocks = [self.memory.arrays(block) for block in pinned.ids]
        tail = None if pinned.tail_id is None else self.memory.arrays(pinned.tail_id)
        tail_tokens = pinned.tail_tokens
        with mx.stream(sequences.stream):
            make = partial(make_row_caches, self._network, self._block_tokens)
            return gather(self._spec, blocks, tail, tail_tokens, make)

    def _cache_complete_blocks(
        self, uid: int, sequence: TrackedSequence, sequences: Sequences
    ) -> None:
        size, tokens = self._block_tokens, sequence.tokens
        while sequence.is_caching and (len(sequence.names) + 1) * size <= tokens:
            start = len(sequence.names) * size
            block = self._cache_block(uid, sequence, sequences, start + size)
            if block is None:
                self._drop_pending(sequence)
                sequence.is_caching = False
                return
            sequence.names.append(block[0])
            sequence.ids.append(block[1])
            self._replace_tail(sequence, block[0])
        if tokens == sequence.prompt_tokens - 1 and tokens % size:
            sequence.tail = self._cache_block(uid, sequence, sequences, tokens)
            self._drop_pending(sequence)

    def _cache_tail(
        self,
        uid: int,
        sequence: TrackedSequence,
        sequences: Sequences,
    ) -> BlockHash | None:
        """Cache the last block, which is not full; return its hash."""
        if sequence.tokens % self._block_tokens == 0:
            return None
        block = self._cache_block(uid, sequence, sequences, sequence.tokens)
        if block is None:
            return None
        if sequence.tail is None or sequence.tail[0] != block[0]:
            self._replace_tail(sequence, block[0])
        sequence.ids.append(block[1])
        return block[0]

    def _persist_blocks(self, uid: int, sequence: TrackedSequence, sequences: Sequences) -> None:
        """Submit the whole blocks that are not on disk."""
        found = sequences.find(uid)
        if self._disk is not None and found is not None:
            arrays = [self.memory.arrays(block) for block in sequence.ids[: len(sequence.names)]]
            self._disk.store_whole(sequence.names, found[1], arrays)

    def _report_cached(self, sequence: TrackedSequence, tail: BlockHash | None) -> None:
        """Report which blocks of a sequence are on disk, once their writes are done."""
        if self._disk is None:
            return
        manifest = Manifest(fingerprint=self.fingerprint, blocks=tuple(sequence.names), tail=tail)
        whole_tokens, size, label = sequence.tokens, self._block_tokens, sequence.label

        def report(sealed: Manifest) -> None:
            tokens = len(sealed.blocks) * size if sealed != manifest else whole_tokens
            self._on_context(ContextSaved(label=label, manifest=sealed, tokens=tokens))

        self._disk.on_sealed(manifest, report)

    def _cache_block(
        self,
        uid: int,
        sequence: TrackedSequence,
        sequences: Sequences,
        stop: int,
    ) -> tuple[BlockHash, BlockId] | None:
        found = sequences.find(uid)
        if found is None or len(found[1]) < stop:
            return None
        start = len(sequence.names) * self._block_tokens
        ids = found[1][start:stop]
        parent = sequence.names[-1] if sequence.names else None
        name = self._hasher.of_packed(parent, pack_ids(ids))
        cut = partial(extract_live, sequences, uid, start, stop)
        block = self.memory.add(name, parent, ids, cut)
        sequence.pending.discard(name)
        self._pending.discard(name)
        if block is None:
            return None
        if self._disk is not None:
            self._disk.store(name, parent, ids, self.memory.arrays(block))
        return name, block

    def _replace_tail(self, sequence: TrackedSequence, longer: BlockHash) -> None:
        """Drop the tail of the prompt once a longer block that contains it is cached."""
        if sequence.tail is None or not self._spec.may_cut(self._block_tokens):
            return
        name, block = sequence.tail
        sequence.tail = None
        self.memory.forget(name)
        self.memory.release([block])
        if self._disk is not None:
            self._disk.replace(name, longer)

    def _next_boundary(self, sequence: TrackedSequence) -> int:
        border = sequence.tokens - sequence.tokens % self._block_tokens + self._block_tokens
        pause = sequence.prompt_tokens - 1
        return min(border, pause) if sequence.tokens < pause else border

    def _drop_pending(self, sequence: TrackedSequence) -> None:
        self._pending -= sequence.pending
        sequence.pending.clear()

    def _names(self, token_ids: Sequence[int]) -> Iterator[BlockHash]:
        """Yield the hashes of all blocks of a prompt lazily, the tail last."""
        packed = pack_ids(token_ids)
        parent = None
        for parent in self._hasher.chain(packed, self._block_tokens):
            yield parent
        tail = packed[len(packed) - len(packed) % (self._block_tokens * ID_BYTES) :]
        if tail:
            yield self._hasher.of_packed(parent, tail)
