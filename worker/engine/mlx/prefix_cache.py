"""Starts sequences from the contexts in memory and on the disk, and keeps the contexts they make.

Each token is in memory once: in the row that runs, or in the segment that the row becomes at its
end. See ``docs/kv-cache.md``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import mlx.core as mx
import structlog
from mlx_lm.generate import generation_stream

from domain.kv.checkpoints import checkpoint_fingerprint
from domain.kv.contexts import Context
from domain.kv.hashing import LAYOUT_VERSION, BlockHash, pack_ids
from domain.kv.owned_tokens import cache_ids, context_of
from domain.kv.spec import ModelCacheSpec
from domain.values import WaitingFor
from worker.cachestore.reports import ContextSaved, ContextStarted, Manifest, OnContext
from worker.cachestore.tier import DiskTier
from worker.cachestore.writer import WriteState
from worker.engine.mlx.fingerprint import block_fingerprint, computation_of
from worker.engine.mlx.kv.context_caches import ContextCaches, ContextStore
from worker.engine.mlx.kv.context_ends import ContextEnds, TrackedSequence
from worker.engine.mlx.kv.context_saver import FLUSH_S, STOPPED, ContextSaver
from worker.engine.mlx.kv.row_opening import RowOpening
from worker.engine.mlx.kv.start_plan import (
    RESTORED_TOKENS_MIN,
    PendingPrefixes,
    StartPlan,
    StartPlanner,
    row_slots,
)
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.rows.running_sequences import JoinRequest, RunningSequences
from worker.engine.mlx.untyped import Network
from worker.engine.ports import Admission, Admitted, CachedPrefix, Finish

_log = structlog.get_logger(__name__)

#: Most bytes that are read from the disk and not copied into rows yet.
READ_AHEAD_BYTES_MAX = 256 << 20
#: Longest wait for the disk when a running sequence gives up its memory, in seconds.
PARKED_S_MAX = 2.0

#: Room that a row has beyond its tokens where memory is free, in parts of the tokens.
SPARE_PARTS = 16
#: States of the disk in which contexts may be freed although it does not have them.
_LOSES = frozenset((WriteState.PAUSED, WriteState.FULL))


class PrefixCache:
    """The contexts of one model in memory, and their way to and from the disk.

    Belongs to the engine thread, except ``cached_prefix`` and ``forget``.

    Args:
        budget_bytes: Bytes for rows, segments, checkpoints and copies together.
        tier: Stores blocks on the disk; ``None`` keeps them in memory only.
        on_context: Receives reports of restored and saved contexts; must not block.
    """

    def __init__(
        self,
        network: Network,
        fingerprint: str,
        budget_bytes: int,
        spec: ModelCacheSpec,
        *,
        on_context: OnContext,
        tier: DiskTier | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self.fingerprint = block_fingerprint(
            fingerprint,
            kv_dtype=spec.form,
            layout=f"{LAYOUT_VERSION}:{spec.block_tokens}",
            computation=computation_of(network),
        )
        fingerprints = self.fingerprint, checkpoint_fingerprint(self.fingerprint)
        in_flight_bytes = 0 if tier is None else spec.in_flight_bytes(budget_bytes)
        self.store = ContextStore(
            self.fingerprint,
            spec,
            budget_bytes,
            in_flight_bytes=in_flight_bytes,
            may_lose=lambda: tier is None or tier.write_state() in _LOSES,
        )
        self.pool = self.store.pool
        planner = StartPlanner(self.store, self.fingerprint, tier, monotonic_s)
        saver = None if tier is None else ContextSaver(self.store, tier, fingerprints)
        if tier is not None:
            self.pool.on_cut = self._on_cut
            tier.limit_in_flight(write_bytes=in_flight_bytes, read_bytes=READ_AHEAD_BYTES_MAX)
        self._planner, self._saver, self._tier = planner, saver, tier
        self._opening = partial(
            RowOpening,
            store=self.store,
            planner=planner,
            fingerprints=fingerprints,
            tier=tier,
            now_s=monotonic_s,
        )
        self._ends = ContextEnds(self.store, planner, saver)
        self._pending = PendingPrefixes(self.pool)
        self._tracked: dict[int, TrackedSequence] = {}
        self._on_context = on_context
        self._now_s = monotonic_s
        self._new_caches = partial(make_row_caches, network, spec.block_tokens, spec)

    def _on_cut(self, context: Context, tokens: int) -> None:
        """Save what is left of a context whose memory is freed."""
        assert self._saver is not None, "there is a disk"
        if not context.is_saved:
            _log.warning("context_freed_unsaved", tokens=len(context.token_ids) - tokens)
        if tokens:
            self._saver.cut(context, tokens)
        else:
            self._saver.remove(context)

    # --- lookups -----------------------------------------------------------------------------

    def cached_prefix(self, token_ids: Sequence[int]) -> CachedPrefix:
        """Return how many tokens of a prompt are cached at the moment; from any thread."""
        in_memory, tokens, known = self._planner.known_tokens(token_ids[:-1])
        if tokens < RESTORED_TOKENS_MIN:
            return CachedPrefix(known=known if known >= RESTORED_TOKENS_MIN else 0)
        return CachedPrefix(tokens, "disk" if tokens > in_memory else "ram", in_memory, known)

    @property
    def limit_bytes(self) -> int:
        """Most bytes of the caches of one sequence."""
        return self.pool.context_limit_bytes

    def must_wait(self, token_ids: Sequence[int]) -> WaitingFor | None:
        """Return ``PREFIX`` while a running sequence will soon hold more of this prompt.

        A call with the same object as before is cheap until the answer may have changed.
        """
        return WaitingFor.PREFIX if self._pending.must_wait(token_ids) else None

    def used_bytes(self) -> int:
        """Return the bytes of contexts, checkpoints, and copies on their way to the disk."""
        in_flight_bytes = 0 if self._tier is None else self._tier.write_bytes()
        return self.pool.used_bytes + in_flight_bytes

    def withhold(self, size_bytes: int) -> None:
        """Take bytes from the budget until the next call; a lone sequence may use them."""
        self.pool.withheld_bytes = size_bytes

    def row_bytes(self, tokens: int) -> int:
        """Return the bytes of a sequence's caches after its next step, in whole blocks."""
        return self._spec.live_bytes(row_slots(self._spec, tokens))

    # --- a sequence joins ----------------------------------------------------------------------

    def insert(self, admission: Admission, sequences: RunningSequences) -> Admitted | None:
        """Add a sequence; return ``None`` if its memory is not available now.

        ``sequences.open_rows`` restores its known tokens; ``opened`` must follow.
        """
        tokens = cache_ids(admission.tokens)
        plan = self._planner.admit(tokens, running=len(self._tracked), is_cold=admission.is_cold)
        if plan is None:
            return None
        context, caches = self._begin(plan, len(tokens))
        context.token_ids = context_of(admission.tokens, context.token_ids)
        opening = self._opening(
            caches=caches, token_ids=tokens[:-1], plan=plan, slots=context.slots
        )
        sequence = TrackedSequence(
            context=context,
            opening=opening,
            prompt_tokens=len(tokens),
            names=tuple(self.pool.hasher.chain(pack_ids(tokens[:-1]), self._spec.block_tokens)),
            label=admission.label,
            started_s=self._now_s(),
        )
        self._ends.begin(sequence, tokens[:-1], plan, admission)
        sequence.pending = self._pending.add(
            tokens[:-1], sequence.names, len(context.token_ids), sequence.pauses
        )
        uid = sequences.insert(
            JoinRequest(
                prompt=admission.tokens,
                pauses=tuple(sequence.pauses),
                caches=caches.caches,
                tokens=context.token_ids,
                opening=opening.steps,
                is_alone=admission.is_alone,
                images=admission.images,
            )
        )
        self._tracked[uid] = sequence
        return Admitted(uid, plan.tokens, self._spec.block_tokens)

    def _roomy_slots(self, tokens: int, plan: StartPlan) -> int:
        """Return the slots of a new row, with room for later tokens where memory is free."""
        held_bytes = 0 if plan.adopted is None else plan.adopted.size_bytes
        roomy = row_slots(self._spec, tokens + max(self._spec.block_tokens, tokens // SPARE_PARTS))
        if plan.adopted is not None and row_slots(self._spec, tokens) <= plan.adopted.slots:
            return plan.adopted.slots
        if self._spec.live_bytes(roomy) - held_bytes <= self.pool.free_bytes():
            return roomy
        return row_slots(self._spec, tokens)

    def _begin(self, plan: StartPlan, tokens: int) -> tuple[Context, ContextCaches]:
        """Return the context of a new row and its caches, for a prompt of ``tokens``."""
        slots = self._roomy_slots(tokens, plan)
        context = plan.adopted
        if context is None:
            caches = ContextCaches(self._spec, self._new_caches())
            return self.store.open(caches, slots), caches
        self.pool.release(context)
        caches, held = self.store.caches(context), len(context.token_ids)
        known = plan.pieces[0].stop
        if plan.end is None and self._spec.has_ends:
            caches.trim_end(known, held)
        else:
            caches.set_tokens(known)
        if self._saver is not None:
            self._saver.cut(context, known)
        self.pool.adopt(context, known)
        self.pool.grow(context, slots)
        return context, caches

    def opened(self, uid: int, restored_tokens: int) -> None:
        """Register the restored tokens of a sequence, and report its start."""
        sequence = self._tracked[uid]
        opening, context = sequence.opening, sequence.context
        assert opening is not None, "a row is opened once"
        self._release(sequence)
        disk_tokens = min(opening.disk_tokens, restored_tokens)
        if restored_tokens < len(context.token_ids):
            self.pool.cut(context, restored_tokens)
        else:
            held = len(context.token_ids)
            context.token_ids += opening.token_ids[held:restored_tokens]
        context.tail = opening.tail or context.tail
        if self._saver is not None:
            self._saver.add(context)
        self._seal(sequence)
        self._drop_pending(sequence)
        self._on_context(
            ContextStarted(
                label=sequence.label,
                fingerprint=self.fingerprint,
                names=sequence.names,
                block_tokens=self._spec.block_tokens,
                prompt_tokens=sequence.prompt_tokens,
                restored_tokens=restored_tokens,
                disk_tokens=disk_tokens,
                diverged_at=opening.plan.diverged_at,
                took_ms=round(1000 * (self._now_s() - sequence.started_s), 3),
            )
        )

    # --- a sequence runs -----------------------------------------------------------------------

    def advance(self, uid: int, sequences: RunningSequences) -> None:
        """Name the blocks that a sequence has completed, and make its checkpoints."""
        sequence = self._tracked[uid]
        self._seal(sequence)
        with mx.stream(sequences.stream):
            self._ends.advance(sequence, partial(self._caches_of, uid, sequences))
        self._drop_pending(sequence)

    def _caches_of(self, uid: int, sequences: RunningSequences) -> ContextCaches:
        found = sequences.find(uid)
        assert found is not None, "the sequence runs"
        return ContextCaches(self._spec, found[0])

    def _seal(self, sequence: TrackedSequence) -> None:
        context, size = sequence.context, self._spec.block_tokens
        while (len(context.names) + 1) * size <= len(context.token_ids):
            at = len(context.names)
            if at < len(sequence.names):
                name = sequence.names[at]
            else:
                parent = context.names[-1] if context.names else None
                ids = context.token_ids[at * size : (at + 1) * size]
                name = self.pool.hasher.of_packed(parent, pack_ids(ids))
            self.pool.seal(context, name)

    def _drop_pending(self, sequence: TrackedSequence) -> None:
        """Remove the prefixes that a sequence holds now, checkpoints included."""
        tokens = len(sequence.context.token_ids)
        held = [name for name, end in sequence.pending.items() if end <= tokens]
        self._pending.remove(held)
        for name in held:
            del sequence.pending[name]

    def reserve(self, sequences: RunningSequences) -> bool:
        """Make room for the next step of each row; return whether there is enough memory."""
        alone = len(self._tracked) == 1
        with mx.stream(sequences.stream):
            return (self.pool.fit() or alone) and all(
                sequence.opening is not None or self._grow(sequence.context, alone=alone)
                for sequence in self._tracked.values()
            )

    def _grow(self, context: Context, *, alone: bool) -> bool:
        """Make room for the next step of a row; return whether there is enough memory.

        Args:
            alone: Whether no other sequence runs; then contexts are freed that the disk lacks.
        """
        tokens = len(context.token_ids)
        needed = row_slots(self._spec, tokens)
        if needed <= context.slots:
            return True
        roomy = row_slots(self._spec, tokens + tokens // SPARE_PARTS)
        if self._spec.live_bytes(roomy) - context.size_bytes > self.pool.free_bytes():
            roomy = needed
        added_bytes = self._spec.live_bytes(roomy) - context.size_bytes
        if not self.pool.make_room(added_bytes, lose=alone, alone=alone):
            return False
        self.pool.grow(context, roomy)
        for _ in self.store.caches(context).reserve(roomy):
            pass
        return True

    # --- a sequence leaves ---------------------------------------------------------------------

    def end(
        self, uid: int, sequences: RunningSequences, finish: Finish | None, *, yields: bool = False
    ) -> None:
        """Park a sequence that is still in ``sequences``; its context is saved from there.

        Args:
            uid: The sequence; an unknown one is ignored.
            finish: Why it ended, if it ended by itself.
            yields: Whether it gives up its memory for others: then the disk is waited for.
        """
        sequence = self._tracked.pop(uid, None)
        if sequence is None:
            return
        self._pending.remove(sequence.pending)
        found = sequences.find(uid)
        if sequence.opening is not None or found is None:
            self._take_back(sequence)
            return
        caches = ContextCaches(self._spec, found[0])
        complete = len(sequence.context.token_ids) >= sequence.prompt_tokens
        with mx.stream(sequences.stream):
            caches.own_ends()
            self.store.park(sequence.context, caches)
            self._ends.end(sequence, caches, finish, self._reporter(sequence) if complete else None)
        if yields and self._saver is not None:
            self._saver.save_now(sequence.context, PARKED_S_MAX)

    def _take_back(self, sequence: TrackedSequence) -> None:
        """Park what a sequence had adopted, or what a failed step left of it; else drop it."""
        opening, context = sequence.opening, sequence.context
        caches = self.store.caches(context)
        self._release(sequence)
        if opening is None:
            is_kept = self._rewind(context)
        else:
            opening.steps.close()
            is_kept = opening.plan.adopted is context
            if is_kept:
                if opening.plan.end is not None:  # else the row goes on from its own ends
                    caches.drop_ends()
                caches.set_tokens(len(context.token_ids))
        if is_kept:
            self.store.park(context, caches)
            if self._saver is not None:
                self._saver.add(context)
            return
        if self._saver is not None:
            self._saver.remove(context)
        self.pool.free(context)

    def _release(self, sequence: TrackedSequence) -> None:
        """End the opening of a sequence: what it copied from may be changed again."""
        if sequence.opening is not None:
            self.pool.release(*sequence.opening.plan.sources)
            sequence.opening = None

    def _reporter(self, sequence: TrackedSequence) -> Callable[[Manifest], None]:
        """Return what reports the blocks of a sequence that are on the disk."""
        tokens, label = len(sequence.context.token_ids), sequence.label
        whole = tokens // self._spec.block_tokens

        def report(manifest: Manifest) -> None:
            is_whole = len(manifest.blocks) == whole and (manifest.tail is not None)
            saved = tokens if is_whole else len(manifest.blocks) * self._spec.block_tokens
            self._on_context(ContextSaved(label=label, manifest=manifest, tokens=saved))

        return report

    def end_all(self) -> None:
        """Park what is left of all running sequences after a failed step."""
        for sequence in self._tracked.values():
            self._take_back(sequence)
        self._tracked.clear()
        self._pending.clear()

    def _rewind(self, context: Context) -> bool:
        """Take back what a failed step may have written; return whether something is left."""
        if not context.token_ids:
            return False
        try:
            with mx.stream(generation_stream):
                self.store.caches(context).rewind(len(context.token_ids))
        except Exception as error:  # noqa: BLE001 - whatever the failed step left in the arrays
            _log.warning("context_lost", tokens=len(context.token_ids), why=repr(error))
            return False
        return True

    def save_all(self, timeout_s: float) -> bool:
        """Save all contexts, the hottest first; return whether that ended in time."""
        until_s = self._now_s() + timeout_s
        while self.pump() and self._tier is not None:
            if self._now_s() > until_s or self._tier.write_state() in STOPPED:
                return False
            self._tier.flush(FLUSH_S)
        return self._tier is None or self._tier.flush(max(0.0, until_s - self._now_s()))

    def pump(self, is_due: Callable[[], bool] | None = None) -> bool:
        """Save what the disk has room for; return whether something is left."""
        self.pool.collect()
        if self._saver is None:
            return False
        with mx.stream(generation_stream):
            return self._saver.pump(is_due)

    def forget(self, names: Sequence[BlockHash]) -> Future[int] | None:
        """Delete blocks in memory and on disk, and checkpoints after them; from any thread.

        A running sequence writes its blocks again when it ends, so cancel it first.

        Returns:
            The number of blocks deleted on disk or in the write queue; ``None`` without a disk.
        """
        self.pool.forget(names)
        self._ends.forget_prompts()
        if self._tier is None:
            return None
        return self._tier.forget([*names, *self._planner.checkpoints_after(names)])

    def close(self) -> None:
        """Drop all sequences and contexts; ``cached_prefix`` returns nothing from then on."""
        self.end_all()
        self.pool.close()
