"""Memory for contexts: what a sequence takes, and whether there is room for it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import structlog

from domain.kv.ledger import KvBudget, NoBlockCapacity
from domain.kv.spec import ModelCacheSpec
from domain.values import ModelCard
from worker.engine.mlx.prefix_cache import PrefixCache
from worker.engine.ports import ModelLoadError

_log = structlog.get_logger(__name__)

#: Where no budget is given.
NO_LIMIT_BYTES = 1 << 62


class AdmissionControl:
    """The budget of one model: its running sequences and its kept blocks.

    Args:
        spec: What the model remembers; ``None`` if its caches are strange, which then count as
            nothing.
        reuse: Who keeps blocks, if anybody does.
        budget_bytes: For both together; ``None`` for no limit.
    """

    def __init__(
        self, spec: ModelCacheSpec | None, reuse: PrefixCache | None, budget_bytes: int | None
    ) -> None:
        self._spec = spec
        self._reuse = reuse
        budget = NO_LIMIT_BYTES if budget_bytes is None else budget_bytes
        self.ledger = KvBudget(budget, NoBlockCapacity() if reuse is None else reuse.memory)

    def row_bytes(self, tokens: int) -> int:
        """Return the size of a sequence's caches once it has its next token, in whole blocks."""
        if self._spec is None:
            return 0
        return self._spec.live_bytes(self._spec.blocks_for(tokens + 1) * self._spec.block_tokens)

    def fitting(self, card: ModelCard) -> ModelCard:
        """Lower the context to what the budget holds, so that no sequence can outgrow it alone.

        Raises:
            ModelLoadFailed: That would be nothing.
        """
        spec, budget = self._spec, self.ledger.budget_bytes
        if spec is None or self.row_bytes(card.context_length - 1) <= budget:
            return card
        size = spec.block_tokens
        counts = range(1, spec.blocks_for(card.context_length))
        blocks = bisect_right(counts, budget, key=lambda count: spec.live_bytes(count * size))
        if not blocks:
            msg = f"engine.kv_budget_mb does not hold one block of {spec.live_bytes(size)} bytes"
            raise ModelLoadError(msg)
        _log.warning("context_lowered", model=card.context_length, fits=blocks * size)
        return replace(card, context_length=blocks * size)

    def restored_max(self, tokens: int, known: int, live_bytes: int, running: int) -> int | None:
        """Return how much of a prompt there is room to restore; ``None`` if it cannot join now.

        What a sequence starts from is held beside its own caches as long as it runs. Only one that
        is alone goes on with less than what is known: it would wait in vain.

        Args:
            tokens: Length of the prompt.
            known: How much of it is in memory.
            live_bytes: What runs takes.
            running: How many run; each gets room to grow before anybody joins.
        """
        growth = self.row_bytes(0 if self._spec is None else self._spec.block_tokens)
        growth -= self.row_bytes(0)
        wanted = live_bytes + self.row_bytes(tokens) + growth * running
        if self._reuse is None or self._spec is None:
            return None if wanted > self.ledger.room_bytes() else 0
        while True:
            blocks = (self.ledger.room_bytes() - wanted) // self._spec.block_bytes
            tokens_max = blocks * self._spec.block_tokens
            if tokens_max >= known:
                return tokens_max
            if not self._reuse.let_go_of_waiting():
                return tokens_max if blocks >= 0 and not running else None

    def find(self, live_bytes: int, by_age: list[int]) -> bool:
        """Reserve for what runs, evicting what is kept; return whether that is enough.

        Cached blocks go first, then what is held for those that wait, then what running sequences
        keep for later, the oldest's first: it is the last that would need it to go on.

        Args:
            live_bytes: What runs will take.
            by_age: Those that run, the oldest first.
        """
        givers = by_age if len(by_age) == 1 else by_age[:-1]
        while not self.ledger.reserve(live_bytes):
            if self._reuse is None:
                return False
            if not (self._reuse.let_go_of_waiting() or any(map(self._reuse.let_go, givers))):
                return False
        return True
