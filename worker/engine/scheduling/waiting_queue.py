"""The sequences that wait for a place in the batch. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from worker.engine.scheduling.batch_window import BatchWindow
from worker.engine.scheduling.fair_queue import FairQueue

#: Seconds between two admission attempts while sequences wait for the disk or for memory and
#: nothing runs.
RETRY_S = 0.002

T = TypeVar("T")


class WaitingQueue(Generic[T]):
    """A ``FairQueue`` with a ``BatchWindow``.

    Args:
        window_s: Length of the batch window in seconds.
    """

    def __init__(self, window_s: float) -> None:
        self.window = BatchWindow(window_s)
        self._queue: FairQueue[T] = FairQueue()
        self._postponed = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, item: T, *, cost: float, at: float) -> None:
        """Append a new item."""
        self._queue.add(item, cost=cost, now=at)
        self.window.record_arrival(at)

    def put_back(self, item: T) -> None:
        """Put an item that was preempted at the front."""
        self._queue.put_back(item)

    def remove(self, item: T) -> None:
        """Remove an item, if it is in the queue."""
        self._queue.remove(item)

    def clear(self) -> list[T]:
        """Remove all items and return them."""
        return self._queue.clear()

    def wait_s(self, now: float) -> float | None:
        """Return the seconds until the next admission attempt; ``None`` if the queue is empty."""
        if not len(self._queue):
            return None
        return RETRY_S if self._postponed else self.window.wait_s(now)

    def admit(
        self,
        now: float,
        places: int,
        *,
        must_wait: Callable[[T], bool],
        join: Callable[[T], bool],
    ) -> None:
        """Let items join in their order until the batch has no room.

        No item overtakes one that does not fit: the order tries the cheapest first, and puts a
        dearer one first only when it is due.

        Args:
            now: The current instant.
            places: How many items may join.
            must_wait: Whether an item should wait for blocks that are being computed or read;
                later items may overtake it.
            join: Adds an item to the batch; returns whether there was room.
        """
        if self.window.wait_s(now) > 0 and len(self._queue) < places:
            return
        self.window.close()
        blocked: list[T] = []
        self._postponed = False
        for item in self._queue.order(now):
            if places < 1:
                return
            if must_wait(item):
                blocked.append(item)
                self._postponed = True
                continue
            if not join(item):
                self._postponed = True
                return
            places -= 1
            self._queue.record_served(item, now, blocked)
            self._queue.remove(item)
