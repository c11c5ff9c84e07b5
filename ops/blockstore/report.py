"""What the store says of itself in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReport:
    """What a start found.

    Attributes:
        blocks: Blocks of all models.
        size_bytes: Their size, after the cap was enforced.
        models: Blocks by the first digits of their fingerprint.
        leftovers: Drafts of dead writers that were removed.
        foreign: Files that are not the store's and were left alone.
        took_ms: How long it took.
    """

    blocks: int
    size_bytes: int
    models: dict[str, int]
    leftovers: int
    foreign: int
    took_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Counters since the start, and what is there now."""

    blocks: int
    size_bytes: int
    budget_bytes: int
    pinned: int
    stored: int
    stored_bytes: int
    present: int
    no_room: int
    hits: int
    hit_bytes: int
    misses: int
    rejected: int
    evicted: int
    evicted_bytes: int
