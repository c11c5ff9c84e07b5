"""Moves blocks between memory and disk: writes behind the engine, reads before admission.

Belongs to the engine thread, except ``known_tokens`` and ``forget``. No call waits for the disk: a
prompt whose blocks are on disk stays in the queue while ``must_wait`` is true, and each call of
``must_wait`` copies blocks that were read meanwhile into memory, for ``COPY_IN_S_MAX`` at most.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field

import structlog

from domain.kv.hashing import LAYOUT_VERSION, BlockHash, BlockHasher, pack_ids
from domain.kv.pool import BlockId
from domain.kv.spec import ModelCacheSpec
from ops.blockstore.blocks import NewBlock, StoredBlock
from worker.cachestore.loader import Continuation, Loaded
from worker.cachestore.manifest import Manifest
from worker.cachestore.tier import DiskTier
from worker.engine.mlx.fingerprint import block_fingerprint
from worker.engine.mlx.kv.arrays import BlockArrays
from worker.engine.mlx.kv.codec import BlockCodec
from worker.engine.mlx.kv.memory import BlockMemory
from worker.engine.mlx.kv.raw import BadPayload

_log = structlog.get_logger(__name__)

#: Bytes of blocks in one read; the next read runs while these are copied into memory.
CHUNK_BYTES = 32 * 2**20
#: A restore that receives no block for this many seconds ends, and the rest is computed.
STALLED_S_MAX = 5.0
#: Longest time that one ``must_wait`` copies blocks before the next decode step, in seconds.
COPY_IN_S_MAX = 0.005
#: Bytes quantised at the end of one sequence; the rest is left for another time, because running
#: sequences wait meanwhile: 0.1 s on a slow processor.
QUANTISED_AT_ONCE_BYTES = 24 * 2**20
#: Computing fewer tokens than this is faster than reading them.
DISK_TOKENS_MIN = 16
#: Most restores at a time; beyond, the oldest is dropped and restarts at its next call.
RESTORES_MAX = 256
#: Seconds that the blocks of a finished restore stay pinned for a prompt that is not admitted.
PINNED_S_MAX = 10.0


@dataclass(slots=True)
class _Restore:
    """One prompt that waits for the disk.

    Attributes:
        token_ids: The prompt without its last token.
        names: Hashes of its whole blocks that memory or disk has, in order.
        pinned: Pool ids of the first of them, which are in memory.
        started_s: Clock time of the start.
        progressed_s: Clock time of the last block read, or of the end.
        requested: Number of names that are in memory or requested from the disk.
        reading: The current read.
        loaded: Blocks that were read and are not in memory yet.
        continuation_requested: Whether the block after the whole ones was requested.
        done: Whether no more blocks come.
        disk_tokens: Tokens that were read from the disk.
    """

    token_ids: Sequence[int]
    names: list[BlockHash]
    pinned: list[BlockId]
    started_s: float
    progressed_s: float
    requested: int
    reading: Future[list[Loaded]] | None = None
    loaded: deque[Loaded] = field(default_factory=deque)
    continuation_requested: bool = False
    done: bool = False
    disk_tokens: int = 0


class Persistence:
    """The disk side of one ``PrefixCache``.

    Args:
        tier: The disk.
        memory: The blocks in memory.
        fingerprint: Block fingerprint.
        spec: Layers and sizes of a block.
        codec: Encodes blocks for the disk.
        monotonic_s: The clock.
    """

    def __init__(
        self,
        tier: DiskTier,
        memory: BlockMemory,
        fingerprint: str,
        spec: ModelCacheSpec,
        codec: BlockCodec,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tier = tier
        self._memory = memory
        self._fingerprint = fingerprint
        self._spec = spec
        self._codec = codec
        self._hasher = BlockHasher(fingerprint)
        self._chunk = max(1, CHUNK_BYTES // spec.block_bytes)
        self._now_s = monotonic_s
        #: By ``id`` of the prompt, which the entry keeps alive.
        self._restores: OrderedDict[int, tuple[Sequence[int], _Restore]] = OrderedDict()

    # --- writes ----------------------------------------------------------------------------

    def store(
        self,
        name: BlockHash,
        parent: BlockHash | None,
        token_ids: Sequence[int],
        arrays: BlockArrays,
    ) -> bool:
        """Submit a block to the disk, unless it is there, its parent is not, or the queue is full.

        Returns:
            Whether the block was encoded; encoding is slow where it quantises.
        """
        if self._tier.holds(name) or not (parent is None or self._tier.holds(parent)):
            return False
        if self._tier.refuses(arrays.nbytes):
            return False
        self._tier.submit(
            NewBlock(
                hash=name,
                parent=parent,
                fingerprint=self._fingerprint,
                token_ids=token_ids,
                payload=self._codec.encode(arrays),
            )
        )
        return True

    def store_whole(
        self, names: Sequence[BlockHash], token_ids: Sequence[int], arrays: Sequence[BlockArrays]
    ) -> None:
        """Submit the whole blocks of a context that the disk does not have.

        Where blocks are quantised, at most about ``QUANTISED_AT_ONCE_BYTES``.
        """
        size = self._spec.block_tokens
        parent, quantised_bytes = None, 0
        for at, (name, block) in enumerate(zip(names, arrays, strict=True)):
            if quantised_bytes >= QUANTISED_AT_ONCE_BYTES:
                return
            stored = self.store(name, parent, token_ids[at * size : (at + 1) * size], block)
            if stored and self._codec.lossy:
                quantised_bytes += block.nbytes
            parent = name

    def replace(self, name: BlockHash, longer: BlockHash) -> None:
        """Delete a block once a longer block that starts with the same tokens is stored."""
        if self._tier.holds(longer):
            self._tier.forget([name])

    def forget(self, names: Sequence[BlockHash]) -> Future[int]:
        """Delete blocks, from any thread; returns how many there were."""
        return self._tier.forget(names)

    def on_sealed(self, manifest: Manifest, callback: Callable[[Manifest], None]) -> None:
        """Call back with the part of a manifest that is on disk, once its writes are done.

        The callback runs on any thread.
        """
        self._tier.sealed(manifest).add_done_callback(lambda stored: callback(stored.result()))

    # --- lookups ---------------------------------------------------------------------------

    def known_tokens(self, token_ids: Sequence[int]) -> int:
        """Return how many tokens of a context memory and disk have as blocks; from any thread.

        A tail counts only if all of its tokens agree. A partial match is found only by reading it.
        """
        names = self._whole(token_ids)
        tokens = len(names) * self._spec.block_tokens
        rest = pack_ids(token_ids[tokens : tokens + self._spec.block_tokens])
        parent = names[-1] if names else None
        fitting = {info.tokens for info in self._tier.children(parent, self._fingerprint)}
        for length in sorted(fitting, reverse=True):
            packed = rest[: length * 4]
            if len(packed) == length * 4 and self._tier.contains(
                self._hasher.of_packed(parent, packed)
            ):
                return tokens + length
        return tokens

    def _whole(self, token_ids: Sequence[int]) -> list[BlockHash]:
        """Return the hashes of the leading whole blocks that memory or disk has."""
        names = []
        for name in self._hasher.chain(pack_ids(token_ids), self._spec.block_tokens):
            if name not in self._memory and not self._tier.contains(name):
                break
            names.append(name)
        return names

    # --- reads -----------------------------------------------------------------------------

    def must_wait(self, prompt: Sequence[int]) -> bool:
        """Return whether blocks of a prompt are still to come from the disk; start to read them.

        The last token of the prompt is excluded, because it is always computed.
        """
        self._end_expired()
        known = self._restores.get(id(prompt))
        if known is not None and known[0] is prompt:
            restore = known[1]
        else:
            restore = self._begin(prompt[:-1])
            self._restores[id(prompt)] = prompt, restore
            if len(self._restores) > RESTORES_MAX:
                self._end(self._restores.popitem(last=False)[1][1])
        if not restore.done:
            self._advance(restore)
        return not restore.done

    def take(self, prompt: Sequence[int]) -> _Restore | None:
        """Return the restore of a prompt that is admitted now; ``release`` must follow."""
        known = self._restores.pop(id(prompt), None)
        return known[1] if known is not None and known[0] is prompt else None

    def release(self, restore: _Restore) -> None:
        """Unpin the blocks of a restore. The admitted sequence has pinned them itself."""
        self._end(restore)

    def release_waiting(self) -> bool:
        """Unpin the blocks of waiting prompts, and stop reading for them.

        Returns:
            Whether any were pinned.
        """
        pinning = [restore for _, restore in self._restores.values() if restore.pinned]
        for restore in pinning:
            self._end(restore)
        return bool(pinning)

    def close(self) -> None:
        """Unpin all blocks and stop all reads."""
        while self._restores:
            self._end(self._restores.popitem()[1][1])

    def _begin(self, token_ids: Sequence[int]) -> _Restore:
        names = self._whole(token_ids)
        pinned = []
        for name in names:
            block = self._memory.acquire(name)
            if block is None:
                break
            pinned.append(block)
        now_s = self._now_s()
        restore = _Restore(
            token_ids=token_ids,
            names=names,
            pinned=pinned,
            started_s=now_s,
            progressed_s=now_s,
            requested=len(pinned),
        )
        if len(token_ids) - self._memory.known_tokens(token_ids) < DISK_TOKENS_MIN:
            self._finish(restore)
        return restore

    def _advance(self, restore: _Restore) -> None:
        """Copy blocks that were read into memory, and request more."""
        until_s = self._now_s() + COPY_IN_S_MAX
        self._receive(restore)
        while restore.loaded and not restore.done:
            self._copy_in(restore, restore.loaded.popleft())
            if self._now_s() >= until_s:
                return
        if restore.reading is None and restore.continuation_requested:
            self._finish(restore)
        elif self._now_s() - restore.progressed_s > STALLED_S_MAX:
            _log.warning("restore_stalled", blocks=len(restore.names) - len(restore.pinned))
            self._finish(restore)

    def _receive(self, restore: _Restore) -> None:
        """Collect the finished read and request the next blocks."""
        if restore.reading is not None:
            if not restore.reading.done() or restore.loaded:
                return
            restore.progressed_s = self._now_s()
            restore.loaded.extend(_result(restore.reading))
            restore.reading = None
        if restore.requested < len(restore.names):
            names = restore.names[restore.requested : restore.requested + self._chunk]
            restore.reading = self._tier.load(names, self._fingerprint)
            if restore.reading is not None:  # else the read queue is full; the next call retries
                restore.requested += len(names)
        elif not restore.continuation_requested:
            restore.continuation_requested = True
            restore.reading = self._read_continuation(restore)

    def _read_continuation(self, restore: _Restore) -> Future[list[Loaded]] | None:
        size = self._spec.block_tokens
        start = len(restore.names) * size
        parent = restore.names[-1] if restore.names else None
        children = self._tier.children(parent, self._fingerprint)
        if all(child.hash in self._memory for child in children):
            return None
        return self._tier.load_continuation(
            Continuation(
                parent=parent,
                token_ids=restore.token_ids[start : start + size],
                fingerprint=self._fingerprint,
                usable_tokens=lambda stored, agreeing: self._spec.usable_tokens(
                    stored_tokens=stored, matching_tokens=agreeing
                ),
                known_tokens=max(0, self._memory.known_tokens(restore.token_ids) - start),
            )
        )

    def _copy_in(self, restore: _Restore, block: Loaded) -> None:
        """Put one block into memory; a missing or wrong block ends the restore."""
        restore.progressed_s = self._now_s()
        if not isinstance(block, StoredBlock):
            self._finish(restore)
            return
        meta = block.meta
        if meta.tokens > self._spec.block_tokens:
            cached = None
        else:
            try:
                cached = self._memory.add(
                    meta.hash, meta.parent, block.token_ids, lambda: self._arrays(block)
                )
            except BadPayload as error:
                self._tier.reject(meta.hash, str(error))
                cached = None
        if cached is None:
            self._finish(restore)
            return
        restore.pinned.append(cached)
        restore.disk_tokens += meta.tokens

    def _arrays(self, block: StoredBlock) -> BlockArrays:
        return self._codec.decode(block.payload, block.meta.tokens)

    def _finish(self, restore: _Restore) -> None:
        """Stop reading; blocks that were read stay pinned."""
        restore.done = True
        restore.progressed_s = self._now_s()
        restore.loaded.clear()
        if restore.reading is not None:
            restore.reading.cancel()
            restore.reading = None

    def _end(self, restore: _Restore) -> None:
        self._finish(restore)
        self._memory.release(restore.pinned)
        restore.pinned.clear()

    def _end_expired(self) -> None:
        oldest_s = self._now_s() - PINNED_S_MAX
        for key, (_, restore) in list(self._restores.items()):
            if restore.done and restore.progressed_s < oldest_s:
                del self._restores[key]
                self._end(restore)


def _result(reading: Future[list[Loaded]]) -> list[Loaded]:
    try:
        return reading.result()
    except (CancelledError, Exception) as error:  # noqa: BLE001 - the prompt is computed instead
        _log.warning("read_failed", why=repr(error))
        return [None]


def fingerprint_of_blocks(
    model: str, spec: ModelCacheSpec, codec: BlockCodec, computation: str
) -> str:
    """Return the fingerprint that the blocks of a model share.

    Args:
        model: Fingerprint of the model.
        spec: Layers and sizes of a block.
        codec: The storage format.
        computation: What computes the blocks; see ``computation_of``.
    """
    layout = f"{LAYOUT_VERSION}:{spec.block_tokens}"
    return block_fingerprint(model, kv_dtype=codec.kv_dtype, layout=layout, computation=computation)
