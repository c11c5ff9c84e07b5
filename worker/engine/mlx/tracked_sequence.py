"""What is known of a sequence that joins a batch, and of one that is in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from domain.kv.hashing import BlockHash
from domain.kv.pool import BlockId
from worker.engine.mlx.kv.memory import PinnedPrefix


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPoint:
    """How a sequence joins.

    Attributes:
        segments: What is to be computed, for ``insert_segments``.
        caches: What need not be, or ``None``.
        tokens: Tokens that ``caches`` hold.
        held: The blocks they came from.
        disk_tokens: How many of the tokens came from the disk for this.
        diverged_at: Where the prompt contradicts what is known, ``None`` if it does not.
        took_ms: How long this took, reading included.
    """

    segments: list[list[int]]
    caches: list[Any] | None
    tokens: list[int]
    held: PinnedPrefix
    disk_tokens: int = 0
    diverged_at: int | None = None
    took_ms: float = 0.0


@dataclass(slots=True)
class TrackedSequence:
    """A sequence in the batch.

    Attributes:
        start: Tokens that it did not have to compute.
        prompt_tokens: Length of what it was to compute, these included.
        tokens: Tokens that the caches hold now.
        look_at: The number of tokens at which it has something to give.
        names: Names of its whole blocks so far.
        ids: The same in the pool, held.
        tail: The block up to the last but one token of its prompt, held.
        promised: Names of blocks of its prompt that others may wait for.
        keeps: Whether its blocks are still kept; without one of them those after it are no use.
        label: Whose it is, for what is told about it.
    """

    start: int
    prompt_tokens: int
    tokens: int
    look_at: int
    names: list[BlockHash]
    ids: list[BlockId]
    tail: tuple[BlockHash, BlockId] | None = None
    promised: set[BlockHash] = field(default_factory=set)
    keeps: bool = True
    label: str = ""
