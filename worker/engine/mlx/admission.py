"""Memory of running sequences, as the runner asks for it; rows without a prefix cache."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import structlog

from domain.values import ModelCard, WaitingFor
from worker.engine.mlx.kv.probe import ContextSizes
from worker.engine.mlx.kv.start_plan import row_slots
from worker.engine.mlx.prefix_cache import PrefixCache
from worker.engine.mlx.rows.running_sequences import JoinRequest, RunningSequences
from worker.engine.ports import Admission, Admitted, Finish, ModelLoadError

_log = structlog.get_logger(__name__)

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


class AdmissionControl:
    """Memory of the sequences of a model whose contexts are not kept; see ``PrefixCache``.

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
        """Take bytes from the budget until the next call; a lone sequence may use them."""
        self._withheld_bytes = size_bytes

    def pump(self, is_due: Callable[[], bool]) -> bool:
        """Return ``False``: there is nothing to save."""
        del is_due
        return False


#: Gives memory to running sequences. Belongs to the engine thread.
RowMemory: TypeAlias = AdmissionControl | PrefixCache


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
