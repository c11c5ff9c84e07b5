"""Blocks between memory and disk: out behind the engine's back, in before a prompt is admitted.

Belongs to the engine thread, except ``known``. Nothing here waits: a prompt whose context goes on
with blocks on disk is asked about again and again (``must_wait``), and each time what has been read
meanwhile is taken over, for a few milliseconds at most.
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

#: Bytes of blocks that are read in one go; while they are taken over, the next are being read.
CHUNK_BYTES = 32 * 2**20
#: A restore that got nothing from the disk for this long ends, and the rest is computed.
STALLED_S_MAX = 5.0
#: Longest time that one look takes blocks over before the running sequences get their next token.
TAKE_OVER_S_MAX = 0.005
#: Once so many bytes were quantised at the end of a sequence, the rest is left for another time:
#: others wait for it, 0.1 s on a slow processor.
QUANTISED_AT_ONCE_BYTES = 24 * 2**20
#: Below this, computing is quicker than asking the disk.
DISK_TOKENS_MIN = 16
#: Prompts whose restore is remembered; beyond, the oldest is looked at anew when it is asked about.
RESTORES_MAX = 256
#: How long the blocks of a finished restore are held for a prompt that was never admitted.
HELD_S_MAX = 10.0


@dataclass(slots=True)
class _Restore:
    """One prompt that waits for the disk.

    Attributes:
        token_ids: The prompt less its last token.
        names: Names of its whole blocks as far as they are known, those in memory included.
        held: The first of them, in memory.
        began_s: When this was started.
        moved_s: When something was last read, or when it was done.
        asked: Names before this place are in memory or being read.
        reading: What is being read, and the names of it; the last may be a continuation.
        arrived: What was read and is not in memory yet.
        went_on: Whether the block after the whole ones was asked for.
        done: Whether nothing more comes.
        disk_tokens: Tokens that came from the disk.
    """

    token_ids: Sequence[int]
    names: list[BlockHash]
    held: list[BlockId]
    began_s: float
    moved_s: float
    asked: int
    reading: Future[list[Loaded]] | None = None
    arrived: deque[Loaded] = field(default_factory=deque)
    went_on: bool = False
    done: bool = False
    disk_tokens: int = 0


class Persistence:
    """The disk of one ``PrefixReuse``.

    Args:
        tier: The disk.
        memory: Where blocks are used from.
        fingerprint: Whose blocks.
        spec: What a block holds.
        codec: How it is written.
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
        #: By the identity of the prompt, which the entry keeps alive.
        self._restores: OrderedDict[int, tuple[Sequence[int], _Restore]] = OrderedDict()

    # --- out -------------------------------------------------------------------------------

    def store(
        self,
        name: BlockHash,
        parent: BlockHash | None,
        token_ids: Sequence[int],
        arrays: BlockArrays,
    ) -> bool:
        """Hand a block to the disk, unless it is there or what it builds on is not.

        Returns:
            Whether it was turned to bytes, which takes time where that means quantising.
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
        """Hand over the whole blocks of a context that the disk did not take before, or has lost.

        Where blocks are quantised, about ``QUANTISED_AT_ONCE_BYTES``; the rest another time.
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
        """Delete a block that another, which begins with it, has made superfluous."""
        if self._tier.holds(longer):
            self._tier.forget([name])

    def forget(self, names: Sequence[BlockHash]) -> Future[int]:
        """Delete blocks, from any thread; returns how many there were."""
        return self._tier.forget(names)

    def when_sealed(self, manifest: Manifest, tell: Callable[[Manifest], None]) -> None:
        """Tell what of a manifest is on disk once its blocks had their chance, in any thread."""
        self._tier.sealed(manifest).add_done_callback(lambda stored: tell(stored.result()))

    # --- what is there ---------------------------------------------------------------------

    def known_tokens(self, token_ids: Sequence[int]) -> int:
        """Return how much of a context memory and disk know as whole blocks; from any thread.

        A tail counts if all of it fits; that only its beginning does is seen when it is read.
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
        """Return the names of the whole blocks that memory or disk knows."""
        names = []
        for name in self._hasher.chain(pack_ids(token_ids), self._spec.block_tokens):
            if name not in self._memory and not self._tier.contains(name):
                break
            names.append(name)
        return names

    # --- in --------------------------------------------------------------------------------

    def must_wait(self, prompt: Sequence[int]) -> bool:
        """Tell whether blocks of a prompt are still to come from the disk; begin to read them.

        The last token is not looked for: it must be computed.
        """
        self._let_go_of_old()
        known = self._restores.get(id(prompt))
        if known is not None and known[0] is prompt:
            restore = known[1]
        else:
            restore = self._begin(prompt[:-1])
            self._restores[id(prompt)] = prompt, restore
            if len(self._restores) > RESTORES_MAX:
                self._end(self._restores.popitem(last=False)[1][1])
        if not restore.done:
            self._go_on(restore)
        return not restore.done

    def take(self, prompt: Sequence[int]) -> _Restore | None:
        """Return the restore of a prompt that is admitted now; ``give_back`` must follow."""
        known = self._restores.pop(id(prompt), None)
        return known[1] if known is not None and known[0] is prompt else None

    def give_back(self, restore: _Restore) -> None:
        """Let go of the blocks, which whoever was admitted holds by now."""
        self._end(restore)

    def let_go(self) -> bool:
        """Make what waiting prompts hold evictable, and read no more for them.

        Returns:
            Whether they held anything.
        """
        holding = [restore for _, restore in self._restores.values() if restore.held]
        for restore in holding:
            self._end(restore)
        return bool(holding)

    def close(self) -> None:
        """Let go of everything."""
        while self._restores:
            self._end(self._restores.popitem()[1][1])

    def _begin(self, token_ids: Sequence[int]) -> _Restore:
        names = self._whole(token_ids)
        held = []
        for name in names:
            block = self._memory.acquire(name)
            if block is None:
                break
            held.append(block)
        now_s = self._now_s()
        restore = _Restore(
            token_ids=token_ids,
            names=names,
            held=held,
            began_s=now_s,
            moved_s=now_s,
            asked=len(held),
        )
        if len(token_ids) - self._memory.known_tokens(token_ids) < DISK_TOKENS_MIN:
            self._finish(restore)
        return restore

    def _go_on(self, restore: _Restore) -> None:
        """Take over what was read, and ask for more."""
        until_s = self._now_s() + TAKE_OVER_S_MAX
        self._receive(restore)
        while restore.arrived and not restore.done:
            self._take_over(restore, restore.arrived.popleft())
            if self._now_s() >= until_s:
                return
        if restore.reading is None and restore.went_on:
            self._finish(restore)
        elif self._now_s() - restore.moved_s > STALLED_S_MAX:
            _log.warning("restore_stalled", blocks=len(restore.names) - len(restore.held))
            self._finish(restore)

    def _receive(self, restore: _Restore) -> None:
        """Collect what was read and ask for what comes next."""
        if restore.reading is not None:
            if not restore.reading.done() or restore.arrived:
                return
            restore.moved_s = self._now_s()
            restore.arrived.extend(_result(restore.reading))
            restore.reading = None
        if restore.asked < len(restore.names):
            names = restore.names[restore.asked : restore.asked + self._chunk]
            restore.reading = self._tier.load(names, self._fingerprint)
            if restore.reading is not None:  # else too many others read; asked again next time
                restore.asked += len(names)
        elif not restore.went_on:
            restore.went_on = True
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

    def _take_over(self, restore: _Restore, block: Loaded) -> None:
        """Put one block into memory; whatever is wrong with it ends the restore."""
        restore.moved_s = self._now_s()
        if not isinstance(block, StoredBlock):
            self._finish(restore)
            return
        meta = block.meta
        if meta.tokens > self._spec.block_tokens:
            kept = None
        else:
            try:
                kept = self._memory.keep(
                    meta.hash, meta.parent, block.token_ids, lambda: self._arrays(block)
                )
            except BadPayload as error:
                self._tier.reject(meta.hash, str(error))
                kept = None
        if kept is None:
            self._finish(restore)
            return
        restore.held.append(kept)
        restore.disk_tokens += meta.tokens

    def _arrays(self, block: StoredBlock) -> BlockArrays:
        return self._codec.decode(block.payload, block.meta.tokens)

    def _finish(self, restore: _Restore) -> None:
        """Nothing more is waited for; what was read stays held."""
        restore.done = True
        restore.moved_s = self._now_s()
        restore.arrived.clear()
        if restore.reading is not None:
            restore.reading.cancel()
            restore.reading = None

    def _end(self, restore: _Restore) -> None:
        self._finish(restore)
        self._memory.release(restore.held)
        restore.held.clear()

    def _let_go_of_old(self) -> None:
        oldest_s = self._now_s() - HELD_S_MAX
        for key, (_, restore) in list(self._restores.items()):
            if restore.done and restore.moved_s < oldest_s:
                del self._restores[key]
                self._end(restore)


def _result(reading: Future[list[Loaded]]) -> list[Loaded]:
    try:
        return reading.result()
    except (CancelledError, Exception) as error:  # noqa: BLE001 - whatever it is, it can be computed
        _log.warning("read_failed", why=repr(error))
        return [None]


def fingerprint_of_blocks(model: str, spec: ModelCacheSpec, codec: BlockCodec) -> str:
    """Return what the blocks of a model belong to.

    Args:
        model: Fingerprint of the model.
        spec: What a block of it holds.
        codec: How it is written.
    """
    layout = f"{LAYOUT_VERSION}:{spec.block_tokens}"
    return block_fingerprint(model, kv_dtype=codec.kv_dtype, layout=layout)
