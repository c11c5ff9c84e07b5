"""Makes actor threads wait for the turn of their job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Self

from domain.job.fair_scheduler import Suspicion, TurnOrder, TurnState
from domain.values import JobId, Priority

#: Jobs of embedding models that are prepared or computed at once.
LANE_SLOTS = 4


class TurnScheduler:
    """``domain.job.fair_scheduler.FairScheduler`` for the threads of one process.

    Args:
        order: Decides which job is next; used only under this object's lock.
        lane: Turns of jobs with slots of their own, which are paused and closed with these.
    """

    def __init__(self, order: TurnOrder, *, lane: TurnScheduler | None = None) -> None:
        self._order = order
        self.lane = lane
        self._lock = threading.Lock()
        self._waiting: dict[JobId, WaitingTurn] = {}
        self._closed = False
        self._paused = False
        #: Puts the waiting jobs that have not begun into the order.
        self._not_begun: dict[JobId, Callable[[], None]] = {}

    @classmethod
    def with_lane(cls, order: TurnOrder) -> TurnScheduler:
        """Return a scheduler with a lane for the jobs of embedding models."""
        lane = TurnOrder(slots=LANE_SLOTS, interactive_reserved=1, line_slots=LANE_SLOTS - 1)
        return cls(order, lane=cls(lane))

    def request_turn(
        self,
        job_id: JobId,
        *,
        line: str | None,
        priority: Priority,
        suspicion: Suspicion = Suspicion.NONE,
        has_begun: bool = False,
    ) -> WaitingTurn:
        """Add a job to the order and return its turn; a closed scheduler refuses it at once."""
        turn = WaitingTurn(self, job_id)
        add = partial(self._order.add, job_id, line=line, priority=priority, suspicion=suspicion)
        with self._lock:
            if self._closed:
                turn.decide(has_slot=False)
                return turn
            self._waiting[job_id] = turn
            if not has_begun:
                self._not_begun[job_id] = add
            if has_begun or not self._paused:
                add()
            self._grant_next()
        return turn

    def set_slots(self, slots: int) -> None:
        """Change how many jobs may run at once; jobs that have a slot keep it."""
        with self._lock:
            self._order.set_slots(slots)
            self._grant_next()

    def set_paused(self, *, paused: bool) -> None:
        """Grant turns only to jobs that have begun, or to all; granted turns stay granted."""
        if self.lane is not None:
            self.lane.set_paused(paused=paused)
        with self._lock:
            if paused is self._paused:
                return
            self._paused = paused
            for job_id, add in self._not_begun.items():
                if paused:
                    self._order.remove(job_id)
                else:
                    add()
            self._grant_next()

    def state(self) -> TurnState:
        """Return the state that decides the next turns."""
        with self._lock:
            return self._order.state()

    def close(self) -> None:
        """Refuse all waiting turns and every later one."""
        if self.lane is not None:
            self.lane.close()
        with self._lock:
            self._closed = True
            for job_id, turn in self._waiting.items():
                self._order.remove(job_id)
                turn.decide(has_slot=False)
            self._waiting.clear()
            self._not_begun.clear()

    def withdraw(self, turn: WaitingTurn) -> None:
        """Refuse a turn that still waits."""
        with self._lock:
            if self._waiting.get(turn.job_id) is turn:
                del self._waiting[turn.job_id]
                self._not_begun.pop(turn.job_id, None)
                self._order.remove(turn.job_id)
                turn.decide(has_slot=False)

    def clear_turn(self, turn: WaitingTurn) -> None:
        """End the trial of a job, and grant the turns that waited for it."""
        with self._lock:
            self._order.clear(turn.job_id)
            self._grant_next()

    def release_turn(self, turn: WaitingTurn) -> None:
        """End a turn, granted or not, and grant its slot to the next."""
        self.withdraw(turn)
        with self._lock:
            if turn.clear_slot():
                self._order.release(turn.job_id)
                self._grant_next()

    def _grant_next(self) -> None:
        while (job_id := self._order.next()) is not None:
            self._not_begun.pop(job_id, None)
            self._waiting.pop(job_id).decide(has_slot=True)


class WaitingTurn:
    """``domain.job.fair_scheduler.QueueTurn``.

    Args:
        scheduler: Grants or refuses the turn.
    """

    def __init__(self, scheduler: TurnScheduler, job_id: JobId) -> None:
        self.job_id = job_id
        self._scheduler = scheduler
        self._decided = threading.Event()
        self._has_slot = False

    def wait(self) -> bool:
        """Block until the turn is granted, cancelled or refused; return whether it was granted."""
        self._decided.wait()
        return self._has_slot

    def cancel(self) -> None:
        """Stop waiting; a turn that is granted already stays granted."""
        self._scheduler.withdraw(self)

    def clear(self) -> None:
        """End the trial of a suspect: other jobs may start beside it."""
        self._scheduler.clear_turn(self)

    def release(self) -> None:
        """Give the slot to the next job."""
        self._scheduler.release_turn(self)

    def decide(self, *, has_slot: bool) -> None:
        """Grant or refuse the turn; the scheduler calls this once, under its lock."""
        self._has_slot = has_slot
        self._decided.set()

    def clear_slot(self) -> bool:
        """Give up the slot; return whether there was one. Called under the scheduler's lock."""
        had_slot, self._has_slot = self._has_slot, False
        return had_slot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
