"""Records of the prefix cache: how a sequence starts, and its state while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from domain.kv.hashing import BlockHash
from domain.kv.pool import BlockId
from worker.engine.mlx.kv.memory import PinnedPrefix


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPoint:
    """How a sequence joins: what is restored and what is computed.

    Attributes:
        segments: Token ids to compute, split at block boundaries.
        caches: Restored caches, one for each layer; ``None`` where nothing is restored.
        tokens: Ids of the tokens in ``caches``.
        pinned: The blocks that the caches were copied from.
        disk_tokens: How many restored tokens were read from the disk for this sequence.
        diverged_at: Index of the first token that contradicts a stored context with the same
            beginning; ``None`` if no stored context contradicts the prompt.
        took_ms: Milliseconds for reading and restoring.
    """

    segments: list[list[int]]
    caches: list[Any] | None
    tokens: list[int]
    pinned: PinnedPrefix
    disk_tokens: int = 0
    diverged_at: int | None = None
    took_ms: float = 0.0


@dataclass(slots=True)
class TrackedSequence:
    """A sequence in the batch.

    Attributes:
        start: Restored tokens.
        prompt_tokens: Tokens of the prompt, restored ones included.
        tokens: Tokens in the caches now.
        next_boundary: Number of tokens at which the next block can be copied.
        names: Hashes of its whole blocks so far.
        ids: Pool ids of the same blocks, pinned.
        tail: Hash and pool id of the block that ends before the prompt's last token, pinned.
        pending: Hashes of prompt blocks that it will compute; other prompts may wait for them.
        is_caching: Whether its blocks are still cached. After one missing block, later ones are
            useless.
        label: Job id, for reports.
    """

    start: int
    prompt_tokens: int
    tokens: int
    next_boundary: int
    names: list[BlockHash]
    ids: list[BlockId]
    tail: tuple[BlockHash, BlockId] | None = None
    pending: set[BlockHash] = field(default_factory=set)
    is_caching: bool = True
    label: str = ""
