"""Start sequences from blocks that are known, and keep the blocks of those that run.

A sequence is looked at only where it has something to give: at each border of a block, before the
last token of its prompt, and at its end. What it has given or taken it holds until it leaves; then
its blocks stay until others need the room, the end of the context first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache

from domain.kv.hashing import ID_BYTES, BlockHash, BlockHasher, pack_ids
from domain.kv.pool import BlockId
from domain.kv.spec import BLOCK_TOKENS
from worker.cachestore.manifest import Manifest
from worker.cachestore.reports import ContextKept, ContextStarted, OnContext, ignore
from worker.cachestore.tier import DiskTier, Storage
from worker.engine.mlx.kv.codec import BlockCodec
from worker.engine.mlx.kv.gather import gather
from worker.engine.mlx.kv.live import cut_at_borders, extract_live, find_live
from worker.engine.mlx.kv.memory import BlockMemory, PinnedPrefix
from worker.engine.mlx.kv.probe import probe_spec
from worker.engine.mlx.persistence import Persistence, fingerprint_of_blocks
from worker.engine.mlx.tracked_sequence import StartPoint, TrackedSequence
from worker.engine.ports import CachedPrefix

#: Below this, putting a context together takes longer than computing it.
RESTORED_TOKENS_MIN = 16


class PrefixCache:
    """Reuse for the sequences of one batch generator. Belongs to the engine thread.

    Args:
        network: An mlx-lm model.
        fingerprint: Of the model.
        budget_bytes: What the blocks may take.
        block_tokens: Tokens in a block.
        tier: Where blocks outlive the process; ``None`` keeps them in memory only.
        on_context: Told what was restored and what was kept; must not wait.

    Raises:
        UnsupportedCache: The model remembers in a way that cannot be cut and restored.
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
        self.fingerprint = fingerprint_of_blocks(fingerprint, self._spec, codec)
        self._hasher = BlockHasher(self.fingerprint)
        self._block_tokens = block_tokens
        self._followed: dict[int, TrackedSequence] = {}
        self._promised: set[BlockHash] = set()
        #: Prompts that wait and the name each waits for, by the identity of their tokens.
        self._waiting: dict[int, tuple[Sequence[int], BlockHash]] = {}
        self.memory = BlockMemory(self.fingerprint, self._spec, budget_bytes)
        self._disk: Persistence | None = None
        if tier is not None:
            self._disk = Persistence(tier, self.memory, self.fingerprint, self._spec, codec)
        self._on_context = on_context

    def cached_prefix(self, token_ids: Sequence[int]) -> CachedPrefix:
        """Return how much of a prompt need not be computed as things stand; from any thread."""
        in_memory = self.memory.known_tokens(token_ids[:-1])
        tokens = in_memory
        if self._disk is not None:
            tokens = max(in_memory, self._disk.known_tokens(token_ids[:-1]))
        if tokens < RESTORED_TOKENS_MIN:
            return CachedPrefix()
        return CachedPrefix(tokens, "disk" if tokens > in_memory else "ram")

    def must_wait(self, token_ids: Sequence[int]) -> bool:
        """Tell whether blocks that this prompt goes on with are about to be there.

        A running sequence computes them, or they are being read from the disk. Asked again about
        the same object, this costs nothing until the answer may have changed.
        """
        if self._is_being_computed(token_ids):
            return True
        return self._disk is not None and self._disk.must_wait(token_ids)

    def _is_being_computed(self, token_ids: Sequence[int]) -> bool:
        if not self._promised:
            self._waiting.clear()
            return False
        tokens, awaited = self._waiting.get(id(token_ids), (None, None))
        if tokens is token_ids and awaited in self._promised:
            return True
        self._waiting.pop(id(token_ids), None)
        for name in self._names(token_ids[:-1]):
            if name in self._promised:
                self._waiting[id(token_ids)] = token_ids, name
                return True
            if name not in self.memory:
                return False
        return False

    def begin(
        self,
        token_ids: Sequence[int],
        generator: Any,  # noqa: ANN401 - as above
        tokens_max: int | None = None,
    ) -> StartPoint:
        """Return how a sequence joins the generator; ``follow`` or ``give_back`` comes next.

        Args:
            token_ids: Its prompt.
            generator: What it joins.
            tokens_max: How much of the prompt there is room to restore; ``None`` for all of it.
        """
        began_s = time.monotonic()
        restore = None if self._disk is None else self._disk.take(token_ids)
        diverged_at = self.memory.diverged_at(token_ids[:-1])
        held = self.memory.hold(token_ids[:-1][:tokens_max], RESTORED_TOKENS_MIN)
        if self._disk is not None and restore is not None:
            began_s = restore.began_s
            self._disk.give_back(restore)
        try:
            caches = self._gathered(held, generator) if held.tokens else None
        except Exception:
            self.give_back(held)
            raise
        return StartPoint(
            segments=cut_at_borders(token_ids[held.tokens :], held.tokens, self._block_tokens),
            caches=caches,
            tokens=list(token_ids[: held.tokens]),
            held=held,
            disk_tokens=0 if restore is None else min(restore.disk_tokens, held.tokens),
            diverged_at=diverged_at,
            took_ms=round(1000 * (time.monotonic() - began_s), 3),
        )

    def give_back(self, held: PinnedPrefix) -> None:
        """Let go of the blocks of a sequence that did not join after all."""
        self.memory.release(held.ids)
        if held.tail_id is not None:
            self.memory.release([held.tail_id])

    def follow(
        self, uid: int, token_ids: Sequence[int], start: StartPoint, label: str = ""
    ) -> None:
        """Keep the blocks of a sequence that has joined."""
        held = start.held
        if held.tail_id is not None:
            self.memory.release([held.tail_id])
        followed = TrackedSequence(
            start=held.tokens,
            prompt_tokens=len(token_ids),
            tokens=held.tokens,
            look_at=0,
            names=list(held.names),
            ids=list(held.ids),
            label=label,
        )
        followed.look_at = self._next_look(followed)
        names = tuple(self._names(token_ids[:-1]))
        followed.promised = {
            name
            for name in names[len(held.names) :]
            if name not in self._promised and name not in self.memory
        }
        self._promised |= followed.promised
        self._followed[uid] = followed
        self._on_context(
            ContextStarted(
                label=label,
                fingerprint=self.fingerprint,
                names=names[: (len(token_ids) - 1) // self._block_tokens],
                block_tokens=self._block_tokens,
                prompt_tokens=len(token_ids),
                restored_tokens=held.tokens,
                disk_tokens=start.disk_tokens,
                diverged_at=start.diverged_at,
                took_ms=start.took_ms,
            )
        )

    def start_of(self, uid: int) -> int:
        """Return how many tokens a sequence did not have to compute."""
        followed = self._followed.get(uid)
        return 0 if followed is None else followed.start

    def advance(self, uid: int, generator: Any, *, tokens: int) -> None:  # noqa: ANN401 - as above
        """Note that the caches hold so many tokens of a sequence, and keep what is complete."""
        followed = self._followed[uid]
        followed.tokens = tokens
        if tokens < followed.look_at:
            return
        if followed.keeps:
            self._look(uid, followed, generator)
        followed.look_at = self._next_look(followed)

    def advance_one(self, uid: int, generator: Any) -> None:  # noqa: ANN401 - as above
        """Note that a token was decoded."""
        self.advance(uid, generator, tokens=self._followed[uid].tokens + 1)

    def end(self, uid: int, generator: Any = None) -> None:  # noqa: ANN401 - as above
        """Let a sequence go; where a generator is given, what it holds last is kept too.

        It must still be in the generator.
        """
        followed = self._followed.get(uid)
        if followed is None:
            return
        if generator is not None and followed.keeps and followed.tokens >= followed.prompt_tokens:
            self._persist_all(uid, followed, generator)
            tail = self._keep_last(uid, followed, generator)
            self._tell_kept(followed, tail)
        del self._followed[uid]
        self._break_promises(followed)
        # What is let go first is evicted first, and a tail is no use without the blocks before it.
        if followed.tail is not None:
            self.memory.release([followed.tail[1]])
        self.memory.release(followed.ids)

    def let_go_of_waiting(self) -> bool:
        """Make evictable what is held for prompts that wait; return whether that is anything."""
        return self._disk is not None and self._disk.let_go()

    def let_go(self, uid: int) -> bool:
        """Make the blocks of a running sequence evictable; it keeps no more from now on.

        Returns:
            Whether it held any.
        """
        followed = self._followed[uid]
        ids = [] if followed.tail is None else [followed.tail[1]]
        held = [*followed.ids, *ids]
        followed.ids, followed.tail, followed.keeps = [], None, False
        self._break_promises(followed)
        self.memory.release(held)
        return bool(held)

    def end_all(self) -> None:
        """Let all sequences go as they are."""
        for uid in list(self._followed):
            self.end(uid)

    def forget(self, names: Sequence[BlockHash]) -> Future[int] | None:
        """Delete blocks in memory and on disk, from any thread.

        What a running sequence holds is written again when it ends: cancel it before.

        Returns:
            How many were on disk or on the way there; ``None`` without a disk.
        """
        for name in names:
            self.memory.forget(name)
        return None if self._disk is None else self._disk.forget(names)

    def close(self) -> None:
        """Drop everything; whoever still asks is told that nothing is known."""
        self.end_all()
        self._waiting.clear()
        if self._disk is not None:
            self._disk.close()
        self.memory.close()

    def _gathered(self, held: PinnedPrefix, generator: Any) -> list[Any]:  # noqa: ANN401 - as above
        blocks = [self.memory.arrays(block) for block in held.ids]
        tail = None if held.tail_id is None else self.memory.arrays(held.tail_id)
        with mx.stream(generator.stream):
            return gather(
                self._spec,
                blocks,
                tail,
                held.tail_tokens,
                lambda: make_prompt_cache(self._network),
            )

    def _look(self, uid: int, followed: TrackedSequence, generator: Any) -> None:  # noqa: ANN401 - as above
        size, tokens = self._block_tokens, followed.tokens
        while followed.keeps and (len(followed.names) + 1) * size <= tokens:
            start = len(followed.names) * size
            kept = self._keep(uid, followed, generator, start + size)
            if kept is None:
                self._break_promises(followed)
                followed.keeps = False
                return
            followed.names.append(kept[0])
            followed.ids.append(kept[1])
            self._give_up_tail(followed, kept[0])
        if tokens == followed.prompt_tokens - 1 and tokens % size:
            followed.tail = self._keep(uid, followed, generator, tokens)
            self._break_promises(followed)

    def _keep_last(
        self,
        uid: int,
        followed: TrackedSequence,
        generator: Any,  # noqa: ANN401 - as above
    ) -> BlockHash | None:
        """Keep the block that is not full; return its name."""
        if followed.tokens % self._block_tokens == 0:
            return None
        kept = self._keep(uid, followed, generator, followed.tokens)
        if kept is None:
            return None
        if followed.tail is None or followed.tail[0] != kept[0]:
            self._give_up_tail(followed, kept[0])
        followed.ids.append(kept[1])
        return kept[0]

    def _persist_all(self, uid: int, followed: TrackedSequence, generator: Any) -> None:  # noqa: ANN401 - as above
        """Hand over the whole blocks that the disk did not take before, or has lost."""
        live = find_live(generator, uid)
        if self._disk is not None and live is not None:
            arrays = [self.memory.arrays(block) for block in followed.ids[: len(followed.names)]]
            self._disk.store_whole(followed.names, live.tokens, arrays)

    def _tell_kept(self, followed: TrackedSequence, tail: BlockHash | None) -> None:
        """Say what is on disk of a sequence, as soon as it is."""
        if self._disk is None:
            return
        manifest = Manifest(fingerprint=self.fingerprint, blocks=tuple(followed.names), tail=tail)
        whole_tokens, size, label = followed.tokens, self._block_tokens, followed.label

        def tell(stored: Manifest) -> None:
            tokens = len(stored.blocks) * size if stored != manifest else whole_tokens
            self._on_context(ContextKept(label=label, manifest=stored, tokens=tokens))

        self._disk.when_sealed(manifest, tell)

    def _keep(
        self,
        uid: int,
        followed: TrackedSequence,
        generator: Any,  # noqa: ANN401 - as above
        stop: int,
    ) -> tuple[BlockHash, BlockId] | None:
        live = find_live(generator, uid)
        if live is None or len(live.tokens) < stop:
            return None
        start = len(followed.names) * self._block_tokens
        ids = live.tokens[start:stop]
        parent = followed.names[-1] if followed.names else None
        name = self._hasher.of_packed(parent, pack_ids(ids))
        cut = partial(extract_live, generator, uid, start, stop)
        block = self.memory.keep(name, parent, ids, cut)
        followed.promised.discard(name)
        self._promised.discard(name)
        if block is None:
            return None
        if self._disk is not None:
            self._disk.store(name, parent, ids, self.memory.arrays(block))
        return name, block

    def _give_up_tail(self, followed: TrackedSequence, longer: BlockHash) -> None:
        """Drop the tail of the prompt once a longer block can be used in its place."""
        if followed.tail is None or not self._spec.may_cut(self._block_tokens):
            return
        name, block = followed.tail
        followed.tail = None
        self.memory.forget(name)
        self.memory.release([block])
        if self._disk is not None:
            self._disk.replace(name, longer)

    def _next_look(self, followed: TrackedSequence) -> int:
        border = followed.tokens - followed.tokens % self._block_tokens + self._block_tokens
        pause = followed.prompt_tokens - 1
        return min(border, pause) if followed.tokens < pause else border

    def _break_promises(self, followed: TrackedSequence) -> None:
        self._promised -= followed.promised
        followed.promised.clear()

    def _names(self, token_ids: Sequence[int]) -> Iterator[BlockHash]:
        """Yield the names of all blocks of a prompt, its tail last, each hashed when asked for."""
        packed = pack_ids(token_ids)
        parent = None
        for parent in self._hasher.chain(packed, self._block_tokens):
            yield parent
        tail = packed[len(packed) - len(packed) % (self._block_tokens * ID_BYTES) :]
        if tail:
            yield self._hasher.of_packed(parent, tail)
