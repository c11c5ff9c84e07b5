"""The sequences that wait for a place in the batch. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from domain.values import WaitingFor
from worker.engine.scheduling.batch_window import BatchWindow
from worker.engine.scheduling.fair_queue import PASSES_MAX, WAIT_S_MAX, FairQueue, Turn

#: Seconds between two admission attempts while sequences wait for the disk or for memory and
#: nothing runs.
RETRY_S = 0.002
#: Items without memory in one admission attempt, after which no other item is tried: each of them
#: costs a look-up of its whole prompt.
REFUSALS_MAX = 3

T = TypeVar("T")


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


class WaitingQueue(Generic[T]):
    """A ``FairQueue`` with a ``BatchWindow``.

    Args:
        window_s: Length of the batch window in seconds.
        passes_max: As for ``FairQueue``.
        wait_s_max: As for ``FairQueue``.
    """

    def __init__(
        self, window_s: float, *, passes_max: int = PASSES_MAX, wait_s_max: float = WAIT_S_MAX
    ) -> None:
        self.window = BatchWindow(window_s)
        self._queue: FairQueue[T] = FairQueue(passes_max=passes_max, wait_s_max=wait_s_max)
        self._postponed = False
        self._reasons: Mapping[T, WaitingFor] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def reasons(self) -> Mapping[T, WaitingFor]:
        """Return why each item waits, in order, as of the last attempt; any thread may read it."""
        return self._reasons

    def add(self, item: T, *, cost: float, at: float, rank: int = 0) -> None:
        """Append a new item; a lower rank joins first."""
        self._queue.add(item, cost=cost, now=at, rank=rank)
        self.window.record_arrival(at)

    def put_back(self, item: T, *, rank: int = 0) -> None:
        """Put an item that was preempted at the front of its rank."""
        self._queue.put_back(item, rank=rank)

    def remove(self, item: T) -> None:
        """Remove an item, if it is in the queue."""
        self._queue.remove(item)
        self._reasons = {other: why for other, why in self._reasons.items() if other is not item}

    def clear(self) -> list[T]:
        """Remove all items and return them."""
        self._reasons = {}
        return self._queue.clear()

    def set_costs(self, cost: Callable[[T], float]) -> None:
        """Change the cost of each item to ``cost(item)``."""
        self._queue.set_costs(cost)

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next admission attempt; ``None`` if the queue is empty."""
        if not len(self._queue):
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
        if self.window.wait_s(now) > 0 and len(self._queue) < places:
            return
        self.window.close()
        while self._attempt(now, room):
            pass

    def _attempt(self, now: float, room: BatchRoom[T]) -> bool:
        """Try the items in their order; return whether a pass made another order necessary."""
        reasons: dict[T, WaitingFor] = {}
        blocked: list[T] = []
        refusals, held_rank, is_full = 0, None, False
        for turn in self._queue.turns(now):
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
                some_due = self._queue.record_served(item, now, blocked)
                self._queue.remove(item)
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
