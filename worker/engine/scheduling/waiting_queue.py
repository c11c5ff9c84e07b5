"""The sequences that wait for a place in the batch: which joins next, and when. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from domain.values import WaitingFor

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
    waited for ``wait_s_max``; some are due at once. Items that were put back come first, then the
    due ones in order of arrival, then the others by their cost.

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

    def add(self, item: T, *, cost: float, now: float, rank: int = 0, is_due: bool = False) -> None:
        """Append an item; a lower rank is served first, and within it what is due."""
        self._entries.append(_Entry(item, cost, -math.inf if is_due else now, rank))

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

    def remove(self, item: T) -> None:
        """Remove an item, if it is in the queue."""
        self._entries = [entry for entry in self._entries if entry.item is not item]

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


class BatchWindow:
    """Delays arrivals that follow each other closely.

    An arrival with no other arrival in the window before it is not delayed. Otherwise all arrivals
    wait until one window after the first of them.

    Args:
        window_s: Length in seconds; 0 delays no arrival. It may be changed at any time.
    """

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._latest = -math.inf
        #: When the first of the arrivals came that have not joined.
        self._first: float | None = None
        self._delays = False

    def record_arrival(self, at: float) -> None:
        """Delay the arrivals that have not joined, if this one follows another closely."""
        if self._first is None:
            self._first, self._delays = at, False
        self._delays = self._delays or at - self._latest < self.window_s
        self._latest = max(at, self._latest)

    def wait_s(self, now: float) -> float:
        """Return how many seconds remain until the arrivals may join."""
        if self._first is None or not self._delays:
            return 0.0
        return max(0.0, self._first + self.window_s - now)

    def close(self) -> None:
        """Close the window: the arrivals may join now."""
        self._first = None


#: Seconds between two admission attempts while sequences wait for the disk or for memory and
#: nothing runs.
RETRY_S = 0.002
#: Items without memory in one admission attempt, after which no other item is tried: each of them
#: costs a look-up of its whole prompt.
REFUSALS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRoom(Generic[T]):
    """The batch, as the queue sees it.

    Attributes:
        has_place: Whether there is a place for an item; may free one for it.
        must_wait: Why an item should wait although there may be room, if it should; later ones may
            overtake it.
        join: Adds the item of a turn; returns ``False`` if there is no memory for it.
    """

    has_place: Callable[[T], bool]
    must_wait: Callable[[T], WaitingFor | None]
    join: Callable[[Turn[T]], bool]


class WaitingQueue(FairQueue[T]):
    """The queue in front of the batch, with a ``BatchWindow``.

    Args:
        window_s: Length of the batch window in seconds.
    """

    def __init__(
        self, window_s: float, *, passes_max: int = PASSES_MAX, wait_s_max: float = WAIT_S_MAX
    ) -> None:
        super().__init__(passes_max=passes_max, wait_s_max=wait_s_max)
        self.window = BatchWindow(window_s)
        self._postponed = False
        self._reasons: Mapping[T, WaitingFor] = {}

    @property
    def reasons(self) -> Mapping[T, WaitingFor]:
        """Return why each item waits, in order, as of the last attempt; any thread may read it."""
        return self._reasons

    def add(self, item: T, *, cost: float, now: float, rank: int = 0, is_due: bool = False) -> None:
        """Append an item, which may open the window; see ``FairQueue.add``."""
        super().add(item, cost=cost, now=now, rank=rank, is_due=is_due)
        self.window.record_arrival(now)

    def remove(self, item: T) -> None:
        """Remove an item, if it is in the queue."""
        super().remove(item)
        self._reasons = {other: why for other, why in self._reasons.items() if other is not item}

    def clear(self) -> list[T]:
        """Remove all items and return them."""
        self._reasons = {}
        return super().clear()

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next admission attempt; ``None`` if the queue is empty."""
        if not self._entries:
            return None
        return RETRY_S if self._postponed else self.window.wait_s(now)

    def admit(self, now: float, places: int, room: BatchRoom[T]) -> None:
        """Let items join in their order until the batch has no room.

        - Once a due item finds no memory, no other item joins: the batch drains until it fits.
        - Others of its rank may overtake an item that is not due, and each of them passes it.
        - No item of a higher rank takes the memory that one of a lower rank waits for.

        Args:
            now: The current instant.
            places: Free places of the batch; items that fill them do not wait for the window.
        """
        if self.window.wait_s(now) > 0 and len(self._entries) < places:
            return
        self.window.close()
        while self._attempt(now, room):
            pass

    def _attempt(self, now: float, room: BatchRoom[T]) -> bool:
        """Try the items in their order; return whether a pass made another order necessary."""
        reasons: dict[T, WaitingFor] = {}
        blocked: list[T] = []
        refusals, held_rank, is_full = 0, None, False
        for turn in self.turns(now):
            item = turn.item
            if held_rank is not None and turn.rank >= held_rank:
                reasons[item] = WaitingFor.MEMORY
            elif is_full or not room.has_place(item):
                is_full = True
                reasons[item] = WaitingFor.PLACE
            elif (reason := room.must_wait(item)) is not None:
                reasons[item] = reason
                blocked.append(item)
            elif room.join(turn):
                some_due = self.record_served(item, now, blocked)
                super().remove(item)
                if some_due:
                    return True
            else:
                reasons[item] = WaitingFor.MEMORY
                refusals += 1
                is_last = turn.is_due or refusals == REFUSALS_MAX
                held_rank = 0 if is_last else turn.rank + 1
        self._postponed = bool(blocked or refusals)
        self._reasons = reasons
        return False
