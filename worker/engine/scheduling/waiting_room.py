"""Those who wait for a place in the batch, and who of them joins next. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from worker.engine.scheduling.policies import BatchWindow, FairQueue

#: How often those that wait for the disk or for room are looked at while nothing runs.
POSTPONED_LOOK_S = 0.002

T = TypeVar("T")


class WaitingRoom(Generic[T]):
    """A fair line with a batch window.

    Args:
        window_s: How long those who come together are held for others.
    """

    def __init__(self, window_s: float) -> None:
        self.window = BatchWindow(window_s)
        self._line: FairQueue[T] = FairQueue()
        self._postponed = False

    def __len__(self) -> int:
        return len(self._line)

    def arrived(self, item: T, *, cost: float, at: float) -> None:
        """Let somebody new wait."""
        self._line.add(item, cost=cost, now=at)
        self.window.arrived(at)

    def put_back(self, item: T) -> None:
        """Let somebody who had to leave the batch wait before all others."""
        self._line.put_back(item)

    def remove(self, item: T) -> None:
        """Let somebody go, if they are here."""
        self._line.remove(item)

    def clear(self) -> list[T]:
        """Let everybody go and return them."""
        return self._line.clear()

    def wait_s(self, now: float) -> float | None:
        """Return when to try again with nothing running; ``None`` while nobody is here."""
        if not len(self._line):
            return None
        return POSTPONED_LOOK_S if self._postponed else self.window.wait_s(now)

    def admit(
        self,
        now: float,
        places: int,
        *,
        must_wait: Callable[[T], bool],
        join: Callable[[T], bool],
    ) -> None:
        """Let those join whose turn it is, until there is no room.

        Nobody passes one for whom there is no room: the order tries the cheapest first anyway, and
        where it does not, others have passed often enough.

        Args:
            now: The instant.
            places: How many may join.
            must_wait: Tells who had better wait for what another computes; they let others pass.
            join: Lets somebody join, and tells whether there was room.
        """
        if self.window.wait_s(now) > 0 and len(self._line) < places:
            return
        self.window.close()
        excused: list[T] = []
        self._postponed = False
        for item in self._line.order(now):
            if places < 1:
                return
            if must_wait(item):
                excused.append(item)
                self._postponed = True
                continue
            if not join(item):
                self._postponed = True
                return
            places -= 1
            self._line.serve(item, now, excused)
            self._line.remove(item)
