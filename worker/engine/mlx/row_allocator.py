"""Memory of the rows: whether a prompt can join, what it starts from, and how its row grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from domain.kv.contexts import Context
from worker.engine.mlx.admission import row_slots
from worker.engine.mlx.kv.context_caches import ContextCaches
from worker.engine.mlx.kv.context_saver import ContextSaver
from worker.engine.mlx.kv.context_store import ContextStore
from worker.engine.mlx.kv.start_plan import StartPlan, StartPlanner
from worker.engine.mlx.kv.window_cache import make_row_caches

#: Room that a row has beyond its tokens where memory is free, in parts of the tokens.
SPARE_PARTS = 16
#: Seconds without a running sequence after which contexts that the disk does not take are freed.
BLOCKED_S_MAX = 10.0


class RowAllocator:
    """Gives memory to rows. Belongs to the engine thread.

    Args:
        network: An mlx-lm model.
        store: The contexts in memory.
        planner: Plans how rows start.
        saver: Saves contexts; ``None`` without a disk.
        monotonic_s: The clock.
    """

    def __init__(
        self,
        network: Any,  # noqa: ANN401 - mlx-lm ships no types
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
        """Plan a start for which there is memory, and pin what it uses.

        Args:
            tokens: The prompt.
            running: Number of sequences that run.
            is_cold: Whether the start restores nothing.
        """
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
            caches = ContextCaches(self._spec, make_row_caches(self._network, step))
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
