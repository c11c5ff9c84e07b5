"""The jobs in the hands of a worker, and the turns for which their threads wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from domain.chat.ports import Cancellable
from domain.engine.workers import TurnState
from domain.job.commit import load_job
from domain.job.fair_scheduler import TurnOrder, TurnRequest
from domain.log.ports import EventLog
from domain.values import JobId

#: Slots that batch jobs may not take.
INTERACTIVE_RESERVED = 2
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

    @classmethod
    def of_worker(cls) -> TurnScheduler:
        """Return the scheduler of a worker, with a lane for the jobs of embedding models.

        It has one slot until ``set_slots`` is called.
        """
        lane = TurnOrder(slots=LANE_SLOTS, interactive_reserved=1, line_slots=LANE_SLOTS - 1)
        order = TurnOrder(slots=1, interactive_reserved=INTERACTIVE_RESERVED)
        return cls(order, lane=cls(lane))

    def request_turn(self, job: TurnRequest) -> WaitingTurn:
        """Add a job to the order and return its turn; a closed scheduler refuses it at once."""
        turn = WaitingTurn(self, job)
        with self.changes() as order:
            if self._closed:
                turn.decided.set()
                return turn
            self._waiting[job.id] = turn
            if job.has_begun or not self._paused:
                order.add(job)
        return turn

    def set_slots(self, slots: int) -> None:
        """Change how many jobs may run at once; jobs that have a slot keep it."""
        with self.changes() as order:
            order.set_slots(slots)

    def set_paused(self, *, paused: bool) -> None:
        """Grant turns only to jobs that have begun, or to all; granted turns stay granted."""
        if self.lane is not None:
            self.lane.set_paused(paused=paused)
        with self.changes() as order:
            if paused is self._paused:
                return
            self._paused = paused
            new = [turn.job for turn in self._waiting.values() if not turn.job.has_begun]
            for job in new:
                if paused:
                    order.remove(job.id)
                else:
                    order.add(job)

    def state(self) -> TurnState:
        """Return the state that decides the next turns."""
        with self._lock:
            return self._order.state()

    def close(self) -> None:
        """Refuse all waiting turns and every later one."""
        if self.lane is not None:
            self.lane.close()
        with self.changes():
            self._closed = True
            for turn in tuple(self._waiting.values()):
                self.refuse(turn)

    @contextmanager
    def changes(self) -> Iterator[TurnOrder]:
        """Yield the order under the lock, and grant the turns that a change of it allows."""
        with self._lock:
            yield self._order
            while (job_id := self._order.next()) is not None:
                turn = self._waiting.pop(job_id)
                turn.has_slot = True
                turn.decided.set()

    def refuse(self, turn: WaitingTurn) -> None:
        """End the wait of a turn, if it waits; within ``changes``."""
        if self._waiting.get(turn.job.id) is turn:
            del self._waiting[turn.job.id]
            self._order.remove(turn.job.id)
            turn.decided.set()


class WaitingTurn:
    """``domain.job.fair_scheduler.QueueTurn``.

    Attributes:
        decided: Set once the turn is granted or refused.
        has_slot: Whether it is granted and not released; changes within ``changes``.
    """

    def __init__(self, scheduler: TurnScheduler, job: TurnRequest) -> None:
        self._scheduler = scheduler
        self.job = job
        self.decided = threading.Event()
        self.has_slot = False

    def wait(self) -> bool:
        """Block until the turn is granted, cancelled or refused; return whether it was granted."""
        self.decided.wait()
        return self.has_slot

    def cancel(self) -> None:
        """Stop waiting; a turn that is granted already stays granted."""
        with self._scheduler.changes():
            self._scheduler.refuse(self)

    def clear(self) -> None:
        """End the trial of a suspect: other jobs may start beside it."""
        with self._scheduler.changes() as order:
            order.clear(self.job.id)

    def release(self) -> None:
        """Give the place or the slot back."""
        with self._scheduler.changes() as order:
            self._scheduler.refuse(self)
            if self.has_slot:
                self.has_slot = False
                order.release(self.job.id)


class ActiveJobs:
    """``domain.job.ports.RunningJobs`` for the actor threads and the control listener.

    Invariant: only a claimed job has a handle.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[JobId, tuple[Cancellable, int] | None] = {}
        self._cancelled: dict[JobId, int] = {}
        self._is_used = False

    @contextmanager
    def claim(self, job_id: JobId) -> Iterator[bool]:
        """Claim a job for the length of the block; yields ``False`` if it is claimed already."""
        with self._lock:
            claimed = job_id not in self._claims
            if claimed:
                self._claims[job_id] = None
                self._is_used = True
        try:
            yield claimed
        finally:
            if claimed:
                with self._lock:
                    del self._claims[job_id]
                    self._cancelled.pop(job_id, None)

    def attach(self, job_id: JobId, handle: Cancellable, *, attempt: int) -> None:
        """Set the handle to cancel. A cancellation since the claim takes effect at once."""
        with self._lock:
            assert job_id in self._claims, "a handle needs a claim first"
            self._claims[job_id] = (handle, attempt)
            is_cancelled = attempt <= self._cancelled.get(job_id, 0)
        if is_cancelled:
            handle.cancel()

    def cancel(self, job_id: JobId, *, through: int) -> None:
        """Cancel a job if this process runs it.

        Args:
            through: The last attempt to cancel; later attempts continue.
        """
        with self._lock:
            if job_id not in self._claims:
                return
            self._cancelled[job_id] = max(through, self._cancelled.get(job_id, 0))
            handle = self._claims[job_id]
        if handle is not None and handle[1] <= through:
            handle[0].cancel()

    def jobs(self) -> tuple[JobId, ...]:
        """Return the claimed jobs."""
        with self._lock:
            return tuple(self._claims)

    def take_is_used(self) -> bool:
        """Return whether a job is claimed or was claimed since the last call."""
        with self._lock:
            is_used, self._is_used = self._is_used or bool(self._claims), False
            return is_used

    def __len__(self) -> int:
        with self._lock:
            return len(self._claims)


def cancel_if_recorded(job_id: JobId, active: ActiveJobs, log: EventLog) -> None:
    """Cancel a running job if the log has its cancellation; called by the control listener.

    A cancel message is only a hint. It may arrive when the job has been retried; that later attempt
    must not be cancelled, because it would emit the same text again under other item numbers.

    Raises:
        LogUnavailable: The log cannot be read; ``cancel_where_recorded`` tries again later.
    """
    if job_id not in active.jobs():
        return
    job = load_job(job_id, log=log).job
    if job.cancel_requested:
        # The next attempt may be about to be appended, so it is cancelled too. A retry of the job
        # starts at a later attempt number.
        active.cancel(job_id, through=job.attempt + 1)


def cancel_where_recorded(active: ActiveJobs, log: EventLog) -> None:
    """Cancel the running jobs whose cancellation is in the log but whose message was lost.

    Raises:
        LogUnavailable: The log cannot be read.
    """
    for job_id in active.jobs():
        cancel_if_recorded(job_id, active, log)
