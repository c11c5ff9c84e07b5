"""Memory of running sequences: the port that the runner uses, and rows without a prefix cache."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import structlog

from domain.kv.contexts import Context
from domain.values import ModelCard, WaitingFor
from worker.engine.mlx.kv.context_caches import ContextCaches, ContextStore
from worker.engine.mlx.kv.context_saver import ContextSaver
from worker.engine.mlx.kv.start_plan import StartPlan, StartPlanner
from worker.engine.mlx.kv.window_cache import make_row_caches
from worker.engine.mlx.memory.at_load import ContextSizes
from worker.engine.mlx.rows.running_sequences import JoinRequest, RunningSequences
from worker.engine.mlx.untyped import Network
from worker.engine.ports import Admission, Admitted, Finish, ModelLoadError

_log = structlog.get_logger(__name__)

#: Tokens by which the next step may lengthen a row: the passes in flight, and drafted tokens.
STEP_TOKENS_MAX = 12
#: Longest time in one step for saving, and shortest limit for restoring, beside sequences that
#: run; in seconds.
MOVES_S_MAX = 0.005
#: Share of the budget that cannot be freed at once from which on contexts are saved eagerly.
EAGER_FILL = 0.9
#: Longest time in one step for saving then, in seconds.
EAGER_MOVES_S_MAX = 0.02
#: The limit for restoring while no sequence runs.
IDLE_MOVES_S_MAX = 0.05
#: Share of the longest pause between two tokens that restoring may take in one step.
OPENING_SHARE = 0.4
#: Pause of a step in which all sequences wait for the disk, in seconds.
DISK_PAUSE_S = 0.002
#: The budget where none is configured.
NO_LIMIT_BYTES = 1 << 62


def row_slots(sizes: ContextSizes, tokens: int) -> int:
    """Return the room, in whole blocks, of a row of ``tokens`` that runs its next step."""
    return sizes.blocks_for(tokens + STEP_TOKENS_MAX) * sizes.block_tokens


class RowMemory(Protocol):
    """Gives memory to running sequences. Belongs to the engine thread."""

    @property
    def limit_bytes(self) -> int:
        """Most bytes of the caches of one sequence."""
        ...

    def row_bytes(self, tokens: int) -> int:
        """Return the bytes of a sequence's caches after its next step, in whole blocks."""
        ...

    def used_bytes(self) -> int:
        """Return the bytes of everything that is accounted for."""
        ...

    def must_wait(self, token_ids: Sequence[int]) -> WaitingFor | None:
        """Return ``PREFIX`` while a running sequence will soon hold more of a prompt."""
        ...

    def insert(self, admission: Admission, sequences: RunningSequences) -> Admitted | None:
        """Add a sequence; return ``None`` if its memory is not available now."""
        ...

    def opened(self, uid: int, restored_tokens: int) -> None:
        """Register that a sequence is ready for prefill."""
        ...

    def advance(self, uid: int, sequences: RunningSequences) -> None:
        """Register the tokens that a sequence has now."""
        ...

    def reserve(self, sequences: RunningSequences) -> bool:
        """Make room for the next step of each sequence; return whether there is enough memory."""
        ...

    def end(
        self, uid: int, sequences: RunningSequences, finish: Finish | None, *, yields: bool = False
    ) -> None:
        """Release the memory of a sequence that is still in ``sequences``."""
        ...

    def end_all(self) -> None:
        """Release the memory of all sequences after a failed step."""
        ...

    def withhold(self, size_bytes: int) -> None:
        """Take bytes from the budget until the next call; a lone sequence may use them."""
        ...

    def pump(self, is_due: Callable[[], bool]) -> bool:
        """Save contexts until other work is due; return whether something is left."""
        ...


def open_rows(sequences: RunningSequences, memory: RowMemory, gap_s: float) -> dict[int, int]:
    """Restore new sequences for a moment; return the restored tokens of the ready ones, by uid.

    Args:
        gap_s: Longest pause between two tokens of a stream, in seconds; a part of it is used.
            0 for no limit.
    """
    if not sequences.opening:
        return {}
    is_idle = not sequences.decoding and not sequences.is_prefilling
    beside_s = max(MOVES_S_MAX, gap_s * OPENING_SHARE)
    ready = sequences.open_rows(after_s(beside_s if gap_s and not is_idle else IDLE_MOVES_S_MAX))
    for uid, restored in ready.items():
        memory.opened(uid, restored)
    if is_idle and not ready:
        time.sleep(DISK_PAUSE_S)
    return ready


def after_s(seconds: float) -> Callable[[], bool]:
    """Return a check whether that many seconds have passed since now."""
    until_s = time.perf_counter() + seconds
    return lambda: time.perf_counter() >= until_s


def fit_context(card: ModelCard, memory: RowMemory, spec: ContextSizes) -> ModelCard:
    """Return the card with its context length lowered to what the memory can hold.

    A single sequence then always fits.

    Raises:
        ModelLoadError: The memory holds no block.
    """
    if memory.row_bytes(card.context_length) <= memory.limit_bytes:
        return card
    size = spec.block_tokens
    counts = range(1, spec.blocks_for(card.context_length))
    blocks = bisect_right(
        counts, memory.limit_bytes, key=lambda count: memory.row_bytes(count * size)
    )
    if not blocks:
        msg = (
            f"engine.kv_budget_mb leaves {memory.limit_bytes} bytes for contexts, and one of "
            f"{size} tokens takes {memory.row_bytes(size)}"
        )
        raise ModelLoadError(msg)
    _log.warning("context_lowered", model=card.context_length, fits=blocks * size)
    return replace(card, context_length=blocks * size)


class AdmissionControl:
    """``RowMemory`` of a model whose contexts are not kept.

    Args:
        spec: Sizes of the model's caches, estimated where they cannot be restored; ``None`` before
            a model is loaded.
        budget_bytes: For all sequences together; ``None`` for no limit.
    """

    def __init__(self, spec: ContextSizes | None, budget_bytes: int | None) -> None:
        self._spec = spec
        self.limit_bytes = NO_LIMIT_BYTES if budget_bytes is None else budget_bytes
        self._reserved_bytes = 0
        self._withheld_bytes = 0
        self._running: set[int] = set()

    def row_bytes(self, tokens: int) -> int:
        """Return the bytes of a sequence's caches after its next token, in whole blocks."""
        if self._spec is None:
            return 0
        return self._spec.live_bytes(row_slots(self._spec, tokens))

    def used_bytes(self) -> int:
        """Return the reserved bytes."""
        return self._reserved_bytes

    def must_wait(self, token_ids: Sequence[int]) -> WaitingFor | None:
        """Return ``None``: no sequence shares tokens with another."""
        del token_ids
        return None

    def insert(self, admission: Admission, sequences: RunningSequences) -> Admitted | None:
        """Add a sequence if each running one keeps room for one more block."""
        block = 0 if self._spec is None else self._spec.block_tokens
        growth_bytes = self.row_bytes(block) - self.row_bytes(0)
        wanted_bytes = self.row_bytes(len(admission.tokens)) + growth_bytes * len(self._running)
        # Estimates may have grown since the context length was lowered to what fits alone.
        limit_bytes = self.limit_bytes - self._withheld_bytes
        if self._running and sequences.live_bytes() + wanted_bytes > limit_bytes:
            return None
        join = JoinRequest(
            prompt=admission.tokens, is_alone=admission.is_alone, images=admission.images
        )
        uid = sequences.insert(join)
        self._running.add(uid)
        self._reserved_bytes = sequences.live_bytes()
        return Admitted(uid)

    def opened(self, uid: int, restored_tokens: int) -> None:
        """Do nothing."""

    def advance(self, uid: int, sequences: RunningSequences) -> None:
        """Do nothing."""

    def reserve(self, sequences: RunningSequences) -> bool:
        """Return whether the caches fit after the next step."""
        live_bytes = sequences.live_bytes()
        # To preempt a lone sequence would free nothing for it.
        if live_bytes + self._withheld_bytes > self.limit_bytes and len(self._running) > 1:
            return False
        self._reserved_bytes = live_bytes
        return True

    def end(
        self, uid: int, sequences: RunningSequences, finish: Finish | None, *, yields: bool = False
    ) -> None:
        """Forget a sequence."""
        del sequences, finish, yields
        self._running.discard(uid)

    def end_all(self) -> None:
        """Forget all sequences."""
        self._running.clear()
        self._reserved_bytes = 0

    def withhold(self, size_bytes: int) -> None:
        """See ``RowMemory.withhold``."""
        self._withheld_bytes = size_bytes

    def pump(self, is_due: Callable[[], bool]) -> bool:
        """Return ``False``: there is nothing to save."""
        del is_due
        return False


#: Room that a row has beyond its tokens where memory is free, in parts of the tokens.
SPARE_PARTS = 16
#: Seconds without a running sequence after which contexts that the disk does not take are freed.
BLOCKED_S_MAX = 10.0


class RowAllocator:
    """Gives memory to rows. Belongs to the engine thread."""

    def __init__(
        self,
        network: Network,
        store: ContextStore,
        planner: StartPlanner,
        saver: ContextSaver | None,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._network = network
        self._store = store
        self._pool = store.pool
        self._spec = store.pool.spec
        self._planner = planner
        self._saver = saver
        self._now_s = monotonic_s
        self._blocked_since_s: float | None = None

    def row_bytes(self, tokens: int) -> int:
        """Return the bytes of a sequence's caches after its next step, in whole blocks."""
        return self._spec.live_bytes(row_slots(self._spec, tokens))

    def admit(
        self, tokens: Sequence[int], *, running: int, is_cold: bool = False
    ) -> StartPlan | None:
        """Plan a start for which there is memory, and pin what it uses."""
        growth_bytes = self._spec.full_bytes(self._spec.block_tokens) * running
        needed_bytes = self.row_bytes(len(tokens)) + growth_bytes
        alone = running == 0
        if not self._pool.could_take(needed_bytes, alone=alone):
            return None  # before the prompt is hashed: a refused one is tried again soon
        for adopts in () if is_cold else (False, True):
            plan = self._planner.plan(tokens[:-1], adopts=adopts)
            self._pool.share(*plan.holders)
            held_bytes = 0 if plan.adopted is None else plan.adopted.size_bytes
            if self._pool.make_room(needed_bytes - held_bytes, alone=alone):
                self._blocked_since_s = None
                return plan
            self._pool.release(*plan.holders)
        # Without its sources in memory: the disk has them.
        if not self._pool.make_room(needed_bytes, lose=self._is_blocked(running), alone=alone):
            return None
        self._blocked_since_s = None
        plan = StartPlan() if is_cold else self._planner.plan(tokens[:-1], adopts=True)
        self._pool.share(*plan.holders)
        return plan

    def _is_blocked(self, running: int) -> bool:
        """Return whether nothing has run for long because contexts are not saved."""
        if running:
            self._blocked_since_s = None
            return False
        if self._blocked_since_s is None:
            self._blocked_since_s = self._now_s()
        return self._now_s() - self._blocked_since_s > BLOCKED_S_MAX

    def _roomy_slots(self, tokens: int, plan: StartPlan) -> int:
        """Return the slots of a new row, with room for later tokens where memory is free."""
        held_bytes = 0 if plan.adopted is None else plan.adopted.size_bytes
        roomy = row_slots(self._spec, tokens + max(self._spec.block_tokens, tokens // SPARE_PARTS))
        if plan.adopted is not None and row_slots(self._spec, tokens) <= plan.adopted.slots:
            return plan.adopted.slots
        if self._spec.live_bytes(roomy) - held_bytes <= self._pool.free_bytes():
            return roomy
        return row_slots(self._spec, tokens)

    def begin(self, plan: StartPlan, tokens: int) -> tuple[Context, ContextCaches]:
        """Return the context of a new row and its caches, for a prompt of ``tokens``."""
        slots = self._roomy_slots(tokens, plan)
        context = plan.adopted
        if context is None:
            step = self._spec.block_tokens
            caches = ContextCaches(self._spec, make_row_caches(self._network, step, self._spec))
            return self._store.open(caches, slots), caches
        self._pool.release(context)
        caches, held = self._store.caches(context), len(context.token_ids)
        known = plan.pieces[0].stop
        if plan.end is None and self._spec.has_ends:
            caches.trim_end(known, held)
        else:
            caches.set_tokens(known)
        if self._saver is not None:
            self._saver.cut(context, known)
        self._pool.adopt(context, known)
        self._pool.grow(context, slots)
        return context, caches

    def grow(self, context: Context, *, alone: bool) -> bool:
        """Make room for the next step of a row; return whether there is enough memory.

        Args:
            alone: Whether no other sequence runs; then contexts are freed that the disk lacks.
        """
        tokens = len(context.token_ids)
        needed = row_slots(self._spec, tokens)
        if needed <= context.slots:
            return True
        roomy = row_slots(self._spec, tokens + tokens // SPARE_PARTS)
        if self._spec.live_bytes(roomy) - context.size_bytes > self._pool.free_bytes():
            roomy = needed
        added_bytes = self._spec.live_bytes(roomy) - context.size_bytes
        if not self._pool.make_room(added_bytes, lose=alone, alone=alone):
            return False
        self._pool.grow(context, roomy)
        for _ in self._store.caches(context).reserve(roomy):
            pass
        return True
