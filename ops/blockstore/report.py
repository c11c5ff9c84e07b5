"""Figures of the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanReport:
    """The result of the scan at the start.

    Attributes:
        blocks: Blocks of all models.
        size_bytes: Their size, after the cap was enforced.
        models: Blocks by the first digits of their fingerprint.
        leftovers: Drafts of dead writers that were removed.
        foreign: Files that do not belong to the store; they stay.
        took_ms: Duration in milliseconds.
    """

    blocks: int
    size_bytes: int
    models: dict[str, int]
    leftovers: int
    foreign: int
    took_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Counters since the start, and the present content."""

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

    def added(self, more: Mapping[str, int]) -> StoreStats:
        """Return the figures with some counters increased."""
        return replace(self, **{name: getattr(self, name) + by for name, by in more.items()})
