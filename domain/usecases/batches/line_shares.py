"""The shares of open batches in the window of waiting lines. Pure.

The owner with the fewest waiting lines comes first, and of its batches the one with the fewest. A
batch whose lines fill the window keeps no later batch out: each place that becomes free goes to the
later one until both have equally many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from domain.batch.state import BatchId
from domain.values import Owner


class LineShares:
    """One round: gives every batch a turn, with the room that is its share.

    Args:
        room: Places that are free.
        waiting: Waiting lines of each batch that hold a place.
        owners: The API key of each batch; batches without a key have one owner.
    """

    def __init__(
        self,
        room: int,
        *,
        waiting: Mapping[BatchId, int],
        owners: Mapping[BatchId, Owner | None],
    ) -> None:
        self._room = room
        self._waiting = waiting
        self._owners = owners
        self._left = list(waiting)
        self._held = Counter[Owner | None]()
        for batch_id, lines in waiting.items():
            self._held[owners[batch_id]] += lines

    def next(self) -> tuple[BatchId, int] | None:
        """Return the batch whose turn it is and its share; ``None`` after the last one."""
        if not self._left:
            return None
        first = min(self._left, key=lambda one: (self._held[self._owners[one]], self._waiting[one]))
        self._left.remove(first)
        owner = self._owners[first]
        others = {self._owners[one] for one in self._left} - {owner}
        share = _share(self._room, self._held[owner], (self._held[one] for one in others))
        siblings = (self._waiting[one] for one in self._left if self._owners[one] == owner)
        return first, _share(share, self._waiting[first], siblings)

    def take(self, batch_id: BatchId, lines: int) -> None:
        """Record how many lines of a batch became jobs; later batches share the rest."""
        self._room -= lines
        self._held[self._owners[batch_id]] += lines


def _share(room: int, fewest: int, others: Iterable[int]) -> int:
    """Return how many places the one with the fewest lines gets, so that all become as equal."""
    lines = sorted([fewest, *others])
    while len(lines) > 1 and _level(room, lines) <= lines[-1]:
        lines.pop()  # it has more than the others get
    return min(room, _level(room, lines) - fewest)


def _level(room: int, lines: list[int]) -> int:
    return -(-(room + sum(lines)) // len(lines))
