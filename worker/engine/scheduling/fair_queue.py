"""Order waiting sequences: the cheapest first, with a bound on how long any of them waits.

Pure: the caller passes instants and durations in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

#: Later arrivals that may be served before an item becomes due.
PASSES_MAX = 8
#: Seconds after which an item becomes due.
WAIT_S_MAX = 20.0
#: Groups of items within a rank, in their order.
_RETURNED, _DUE, _BY_COST = range(3)

T = TypeVar("T")


class Turn(NamedTuple, Generic[T]):
    """An item at its place in the order.

    Attributes:
        rank: The rank among whose items it stands: its own, or 0 if it is due by its passes.
        is_due: Whether no item after it may be served before it.
    """

    item: T
    rank: int
    is_due: bool


@dataclass(slots=True, eq=False)
class _Entry(Generic[T]):
    item: T
    cost: float
    since: float
    rank: int = 0
    passed: int = 0
    returned: bool = False


class FairQueue(Generic[T]):
    """A queue that serves the cheapest item first without starving the others.

    An item is *due* once ``passes_max`` later arrivals were served before it, or once it has
    waited for ``wait_s_max``. Items that were put back come first, then the due ones in order of
    arrival, then the others by their cost.

    Items of rank 0 come before those of a higher rank. An item of a higher rank precedes them only
    when it is due by the number of passes: time and a return advance it among its own rank alone.

    Args:
        passes_max: Later arrivals that may be served before an item becomes due.
        wait_s_max: Seconds until an item becomes due.
    """

    def __init__(self, *, passes_max: int = PASSES_MAX, wait_s_max: float = WAIT_S_MAX) -> None:
        self._passes_max = passes_max
        self._wait_s_max = wait_s_max
        #: In order of arrival; items that were put back stand before all others.
        self._entries: list[_Entry[T]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return any(entry.item is item for entry in self._entries)

    def add(self, item: T, *, cost: float, now: float, rank: int = 0) -> None:
        """Append an item; a lower rank is served first."""
        self._entries.append(_Entry(item, cost, now, rank))

    def put_back(self, item: T, *, rank: int = 0) -> None:
        """Return an item that was served before to the front of its rank."""
        self._entries.insert(0, _Entry(item, 0.0, 0.0, rank, returned=True))

    def set_costs(self, cost: Callable[[T], float]) -> None:
        """Change the cost of each item to ``cost(item)``."""
        for entry in self._entries:
            entry.cost = cost(entry.item)

    def turns(self, now: float) -> list[Turn[T]]:
        """Return all items in the order in which to serve them."""
        keyed = [(self._place(entry, now), entry) for entry in self._entries]
        # Equal places keep the order of arrival.
        keyed.sort(key=lambda pair: pair[0])
        return [Turn(entry.item, rank, group < _BY_COST) for (rank, group, _), entry in keyed]

    def order(self, now: float) -> list[T]:
        """Return the items of ``turns``."""
        return [turn.item for turn in self.turns(now)]

    def record_served(self, item: T, now: float, blocked: Collection[T] = ()) -> bool:
        """Count one pass for each earlier arrival, and restart the wait of the item served.

        The item stays in the queue, because it may need several turns.

        Args:
            item: The item that is served.
            now: The current instant.
            blocked: Items that could not be served now; they are not counted as passed.

        Returns:
            Whether another item is due by this pass.
        """
        some_due = False
        for entry in self._entries:
            if entry.item is item:
                entry.passed, entry.since = 0, now
                break
            if entry.item not in blocked:
                entry.passed += 1
                some_due = some_due or entry.passed == self._passes_max
        return some_due

    def remove(self, item: T) -> bool:
        """Remove an item; return whether it was in the queue."""
        found = [entry for entry in self._entries if entry.item is item]
        for entry in found:
            self._entries.remove(entry)
        return bool(found)

    def clear(self) -> list[T]:
        """Remove all items and return them."""
        items = [entry.item for entry in self._entries]
        self._entries.clear()
        return items

    def _place(self, entry: _Entry[T], now: float) -> tuple[int, int, float]:
        """Return the sort key of an entry: rank, group within the rank, cost."""
        if entry.passed >= self._passes_max:
            return 0, _RETURNED if entry.returned and not entry.rank else _DUE, 0.0
        if entry.returned:
            return entry.rank, _RETURNED, 0.0
        if now - entry.since >= self._wait_s_max:
            return entry.rank, _DUE, 0.0
        return entry.rank, _BY_COST, entry.cost
