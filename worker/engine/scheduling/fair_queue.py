"""Order waiting sequences: the cheapest first, with a bound on how long any of them waits.

Pure: the caller passes instants and durations in seconds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

#: Later arrivals that may be served before an item becomes due.
PASSES_MAX = 8
#: Seconds after which an item becomes due.
WAIT_S_MAX = 20.0

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Entry(Generic[T]):
    item: T
    cost: float
    since: float
    passed: int = 0


class FairQueue(Generic[T]):
    """A queue that serves the cheapest item first without starving the others.

    An item is *due* once ``passes_max`` later arrivals were served before it, or once it has
    waited for ``wait_s_max``. Due items come before all others, in order of arrival. Items that
    were put back come before the due ones.

    Args:
        passes_max: Later arrivals that may be served before an item becomes due.
        wait_s_max: Seconds until an item becomes due.
    """

    def __init__(self, *, passes_max: int = PASSES_MAX, wait_s_max: float = WAIT_S_MAX) -> None:
        self._passes_max = passes_max
        self._wait_s_max = wait_s_max
        #: In order of arrival.
        self._entries: list[_Entry[T]] = []
        self._put_back: list[T] = []

    def __len__(self) -> int:
        return len(self._put_back) + len(self._entries)

    def __contains__(self, item: object) -> bool:
        return item in self._put_back or any(entry.item is item for entry in self._entries)

    def add(self, item: T, *, cost: float, now: float) -> None:
        """Append an item."""
        self._entries.append(_Entry(item, cost, now))

    def put_back(self, item: T) -> None:
        """Return an item that was served before to the front of the queue."""
        self._put_back.insert(0, item)

    def order(self, now: float) -> list[T]:
        """Return all items in the order in which to serve them."""
        due: list[_Entry[T]] = []
        rest: list[_Entry[T]] = []
        for entry in self._entries:
            (due if self._is_due(entry, now) else rest).append(entry)
        rest.sort(key=lambda entry: entry.cost)
        return [*self._put_back, *(entry.item for entry in (*due, *rest))]

    def record_served(self, item: T, now: float, blocked: Collection[T] = ()) -> None:
        """Count one pass for each earlier arrival, and restart the wait of the item served.

        The item stays in the queue, because it may need several turns.

        Args:
            item: The item that is served.
            now: The current instant.
            blocked: Items that could not be served now; they are not counted as passed.
        """
        if item in self._put_back:
            return
        for entry in self._entries:
            if entry.item is item:
                entry.passed, entry.since = 0, now
                return
            if entry.item not in blocked:
                entry.passed += 1

    def remove(self, item: T) -> bool:
        """Remove an item; return whether it was in the queue."""
        if item in self._put_back:
            self._put_back.remove(item)
            return True
        found = [entry for entry in self._entries if entry.item is item]
        for entry in found:
            self._entries.remove(entry)
        return bool(found)

    def clear(self) -> list[T]:
        """Remove all items and return them."""
        items = [*self._put_back, *(entry.item for entry in self._entries)]
        self._put_back.clear()
        self._entries.clear()
        return items

    def _is_due(self, entry: _Entry[T], now: float) -> bool:
        return entry.passed >= self._passes_max or now - entry.since >= self._wait_s_max
