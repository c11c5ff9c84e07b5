"""One budget for the contexts that run and for the blocks that are kept.

    budget = live (caches of running sequences) + held blocks + cached blocks + free

What runs goes first: a reservation takes what is free and then what is merely cached, never what
somebody holds. The cache gets what is left.
"""

from __future__ import annotations

from typing import Protocol


class BlockCapacity(Protocol):
    """The kept blocks, as the ledger sees them."""

    def held_bytes(self) -> int:
        """Return the size of the blocks that cannot be evicted."""
        ...

    def used_bytes(self) -> int:
        """Return the size of all blocks."""
        ...

    def resize(self, budget_bytes: int) -> None:
        """Evict what exceeds this and keep no more from now on."""
        ...


class NoBlockCapacity:
    """``BlockCapacity`` where nothing is kept."""

    def held_bytes(self) -> int:
        """Return 0."""
        return 0

    def used_bytes(self) -> int:
        """Return 0."""
        return 0

    def resize(self, budget_bytes: int) -> None:
        """Do nothing."""


class KvBudget:
    """What running sequences have reserved, within a budget that they share with kept blocks.

    Args:
        budget_bytes: For all of it; never exceeded.
        blocks: The kept ones; nobody else resizes them.
    """

    def __init__(self, budget_bytes: int, blocks: BlockCapacity) -> None:
        assert budget_bytes >= 0, "a budget is a number of bytes"
        self.budget_bytes = budget_bytes
        self._blocks = blocks
        self._live_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Return what running sequences have reserved."""
        return self._live_bytes

    def room_bytes(self) -> int:
        """Return the most that running sequences could have reserved now."""
        return self.budget_bytes - self._blocks.held_bytes()

    def reserve(self, live_bytes: int) -> bool:
        """Set what running sequences have reserved, evicting cached blocks where needed.

        Returns:
            Whether there is room; if not, nothing has changed. Less than before always fits.
        """
        assert live_bytes >= 0, "a size is a number of bytes"
        if live_bytes > self._live_bytes and live_bytes > self.room_bytes():
            return False
        if live_bytes != self._live_bytes:
            self._live_bytes = live_bytes
            self._blocks.resize(max(0, self.budget_bytes - live_bytes))
        return True

    def check_integrity(self) -> None:
        """Assert that the budget is kept; for tests."""
        used = self._live_bytes + self._blocks.used_bytes()
        assert used <= self.budget_bytes, "the budget is exceeded"
