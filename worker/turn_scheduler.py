"""Lets the threads of the actor wait for the turn of their job."""

from __future__ import annotations

import threading
from typing import Self

from domain.job.fair_scheduler import TurnOrder, TurnState
from domain.values import JobId, Priority


class TurnScheduler:
    """``domain.job.fair_scheduler.FairScheduler`` for the threads of one process.

    Args:
        order: Decides; touched under this object's lock only.
    """

    def __init__(self, order: TurnOrder) -> None:
        self._order = order
        self._lock = threading.Lock()
        self._waiting: dict[JobId, WaitingTurn] = {}
        self._closed = False

    def ask(self, job_id: JobId, *, agent: str | None, priority: Priority) -> WaitingTurn:
        """Take a place in the order."""
        turn = WaitingTurn(self, job_id)
        with self._lock:
            if self._closed:
                turn.decide(has_slot=False)
                return turn
            self._order.add(job_id, agent=agent, priority=priority)
            self._waiting[job_id] = turn
            self._grant_next()
        return turn

    def state(self) -> TurnState:
        """Return what decides on the next turns."""
        with self._lock:
            return self._order.state()

    def close(self) -> None:
        """Send everybody away who waits; whoever asks later is sent away at once."""
        with self._lock:
            self._closed = True
            for job_id, turn in self._waiting.items():
                self._order.remove(job_id)
                turn.decide(has_slot=False)
            self._waiting.clear()

    def withdraw(self, turn: WaitingTurn) -> None:
        """Send a turn away that still waits."""
        with self._lock:
            if self._waiting.get(turn.job_id) is turn:
                del self._waiting[turn.job_id]
                self._order.remove(turn.job_id)
                turn.decide(has_slot=False)

    def release_turn(self, turn: WaitingTurn) -> None:
        """Take a turn back, had or not."""
        self.withdraw(turn)
        with self._lock:
            if turn.clear_slot():
                self._order.release(turn.job_id)
                self._grant_next()

    def _grant_next(self) -> None:
        while (job_id := self._order.next()) is not None:
            self._waiting.pop(job_id).decide(has_slot=True)


class WaitingTurn:
    """``domain.job.fair_scheduler.QueueTurn``.

    Args:
        gate: Who decides.
        job_id: Whose turn it is.
    """

    def __init__(self, scheduler: TurnScheduler, job_id: JobId) -> None:
        self.job_id = job_id
        self._scheduler = scheduler
        self._decided = threading.Event()
        self._has_slot = False

    def wait(self) -> bool:
        """Block until the gate has decided: every turn is called, cancelled or sent away."""
        self._decided.wait()
        return self._has_slot

    def cancel(self) -> None:
        """Wait no longer; a turn that came already is kept."""
        self._scheduler.withdraw(self)

    def release(self) -> None:
        """Give the slot to the next."""
        self._scheduler.release_turn(self)

    def decide(self, *, has_slot: bool) -> None:
        """Say whether it may run; called by the gate, under its lock, once."""
        self._has_slot = has_slot
        self._decided.set()

    def clear_slot(self) -> bool:
        """Let go of the slot, if it is held; called by the gate, under its lock."""
        had_slot, self._has_slot = self._has_slot, False
        return had_slot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()
