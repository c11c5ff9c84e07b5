"""Memory admission: the bytes that a sequence needs, and whether the budget has them."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import structlog

from domain.kv.ledger import KvBudget, NoBlockCapacity
from domain.kv.spec import ModelCacheSpec
from domain.values import ModelCard
from worker.engine.mlx.memory.at_load import ContextSizes
from worker.engine.mlx.prefix_cache import PrefixCache
from worker.engine.ports import ModelLoadError

_log = structlog.get_logger(__name__)

#: The budget where none is configured.
NO_LIMIT_BYTES = 1 << 62


class AdmissionControl:
    """The KV budget of one model, shared by running sequences and cached blocks.

    Args:
        spec: Sizes of the model's caches, estimated where they cannot be restored; ``None`` before
            a model is loaded.
        prefix_cache: Holds the cached blocks; ``None`` where prefixes are not cached.
        budget_bytes: For sequences and blocks together; ``None`` for no limit.
    """

    def __init__(
        self,
        spec: ContextSizes | None,
        prefix_cache: PrefixCache | None,
        budget_bytes: int | None,
    ) -> None:
        self._spec = spec
        self._prefix_cache = prefix_cache
        budget = NO_LIMIT_BYTES if budget_bytes is None else budget_bytes
        self.ledger = KvBudget(
            budget, NoBlockCapacity() if prefix_cache is None else prefix_cache.memory
        )

    def row_bytes(self, tokens: int) -> int:
        """Return the bytes of a sequence's caches after its next token, in whole blocks."""
        if self._spec is None:
            return 0
        return self._spec.live_bytes(self._spec.blocks_for(tokens + 1) * self._spec.block_tokens)

    def fit_context(self, card: ModelCard) -> ModelCard:
        """Return the card with its context length lowered to what the budget can hold.

        A single sequence then never exceeds the budget.

        Raises:
            ModelLoadError: The budget holds no block.
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

    def max_restorable(self, tokens: int, known: int, live_bytes: int, running: int) -> int | None:
        """Return how many tokens of a prompt may be restored; ``None`` if it cannot join now.

        The blocks that a sequence starts from stay pinned beside its own caches while it runs. A
        sequence restores fewer tokens than memory holds only if no other sequence runs, because
        then waiting would free nothing.

        Args:
            tokens: Tokens of the prompt.
            known: How many of them are in memory.
            live_bytes: Bytes of the running sequences' caches.
            running: Number of running sequences; one block of growth is reserved for each.
        """
        growth = self.row_bytes(0 if self._spec is None else self._spec.block_tokens)
        growth -= self.row_bytes(0)
        wanted = live_bytes + self.row_bytes(tokens) + growth * running
        if self._prefix_cache is None or not isinstance(self._spec, ModelCacheSpec):
            # Estimates may have grown since the context length was lowered to what fits alone.
            return 0 if not running or wanted <= self.ledger.room_bytes() else None
        while True:
            blocks = (self.ledger.room_bytes() - wanted) // self._spec.block_bytes
            tokens_max = blocks * self._spec.block_tokens
            if tokens_max >= known:
                return tokens_max
            if not self._prefix_cache.release_waiting():
                return tokens_max if blocks >= 0 and not running else None

    def accounted_bytes(self, live_bytes: int) -> int:
        """Return the bytes of sequences and blocks together."""
        return live_bytes + (
            0 if self._prefix_cache is None else self._prefix_cache.memory.used_bytes()
        )

    def reserve_or_evict(self, live_bytes: int, by_age: list[int]) -> bool:
        """Reserve bytes for the running sequences, evicting blocks; return whether that succeeds.

        Unpinned blocks are evicted first, then blocks pinned for waiting prompts, then the pinned
        blocks of running sequences, the oldest sequence first: it is preempted last, so it needs
        its blocks for a restart least.

        Args:
            live_bytes: Bytes of the running sequences' caches after the next step.
            by_age: Uids of the running sequences, the oldest first.
        """
        releasable = by_age
        if len(by_age) > 1:
            releasable = by_age[:-1]
        else:
            # To preempt a lone sequence would free nothing for it.
            live_bytes = min(live_bytes, self.ledger.budget_bytes)
        while not self.ledger.reserve(live_bytes):
            if self._prefix_cache is None:
                return False
            if not (
                self._prefix_cache.release_waiting()
                or any(map(self._prefix_cache.release_blocks, releasable))
            ):
                return False
        return True
