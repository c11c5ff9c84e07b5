"""One budget for the running sequences and for the cached blocks.

    budget = live (caches of running sequences) + held blocks + cached blocks + free

Running sequences have priority: a reservation takes free memory and then cached blocks, but no held
block. The cache gets the rest.
"""

from __future__ import annotations

from typing import Protocol


class BlockCapacity(Protocol):
    """The stored blocks, as the budget sees them."""

    def held_bytes(self) -> int:
        """Return the size of the blocks that cannot be evicted."""
        ...

    def used_bytes(self) -> int:
        """Return the size of all blocks."""
        ...

    def resize(self, budget_bytes: int) -> None:
        """Set the budget of the blocks, evicting those that exceed it."""
        ...


class NoBlockCapacity:
    """``BlockCapacity`` without stored blocks."""

    def held_bytes(self) -> int:
        """Return 0."""
        return 0

    def used_bytes(self) -> int:
        """Return 0."""
        return 0

    def resize(self, budget_bytes: int) -> None:
        """Do nothing."""


class KvBudget:
    """The reservation of running sequences, within a budget that they share with stored blocks.

    Args:
        budget_bytes: Upper bound for both together; never exceeded.
        blocks: The stored blocks; only this budget resizes them.
    """

    def __init__(self, budget_bytes: int, blocks: BlockCapacity) -> None:
        assert budget_bytes >= 0, "a budget is a number of bytes"
        self.budget_bytes = budget_bytes
        self._blocks = blocks
        self._live_bytes = 0

    @property
    def live_bytes(self) -> int:
        """Return the reserved bytes of the running sequences."""
        return self._live_bytes

    def room_bytes(self) -> int:
        """Return the most bytes that running sequences can reserve now."""
        return self.budget_bytes - self._blocks.held_bytes()

    def reserve(self, live_bytes: int) -> bool:
        """Set the reservation of the running sequences, evicting cached blocks where needed.

        Returns:
            Whether there is room; if not, nothing has changed. A smaller reservation always fits.
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
