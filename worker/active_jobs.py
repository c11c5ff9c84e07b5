"""Which jobs this process runs just now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from domain.chat.ports import Cancellable
from domain.log.ports import EventLog
from domain.usecases.jobs.commit import load_job
from domain.values import JobId


class ActiveJobs:
    """``domain.job.ports.RunningJobs`` for the actor threads and the control listener.

    Invariant: a handle is held only for a claimed job.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[JobId, tuple[Cancellable, int] | None] = {}
        self._cancelled: dict[JobId, int] = {}

    @contextmanager
    def claim(self, job_id: JobId) -> Iterator[bool]:
        """Hold a job for the length of the block; gives ``False`` if it is held already."""
        with self._lock:
            claimed = job_id not in self._handles
            if claimed:
                self._handles[job_id] = None
        try:
            yield claimed
        finally:
            if claimed:
                with self._lock:
                    del self._handles[job_id]
                    self._cancelled.pop(job_id, None)

    def attach(self, job_id: JobId, handle: Cancellable, *, attempt: int) -> None:
        """Say what to cancel; a wish that was found since the claim takes effect at once."""
        with self._lock:
            assert job_id in self._handles, "a handle needs a claim first"
            self._handles[job_id] = (handle, attempt)
            is_cancelled = attempt <= self._cancelled.get(job_id, 0)
        if is_cancelled:
            handle.cancel()

    def cancel(self, job_id: JobId, *, through: int) -> None:
        """Cancel a job if this process runs it.

        Args:
            job_id: The job.
            through: The last attempt that is meant; one of a later life goes on.
        """
        with self._lock:
            if job_id not in self._handles:
                return
            self._cancelled[job_id] = max(through, self._cancelled.get(job_id, 0))
            handle = self._handles[job_id]
        if handle is not None and handle[1] <= through:
            handle[0].cancel()

    def jobs(self) -> tuple[JobId, ...]:
        """Return the jobs that are claimed just now."""
        with self._lock:
            return tuple(self._handles)

    def __len__(self) -> int:
        with self._lock:
            return len(self._handles)


def cancel_if_recorded(job_id: JobId, active: ActiveJobs, log: EventLog) -> None:
    """Cancel a job that runs here if the log says so; called by the control listener.

    A nudge is a hint. One that comes late may find the job in another life, which nobody wants to
    end: cut short, that one would say the same words under other numbers when it goes on.

    Raises:
        LogUnavailable: The log cannot be read; ``cancel_where_recorded`` looks again.
    """
    if job_id not in active.jobs():
        return
    job = load_job(job_id, log=log).job
    if job.cancel_requested:
        # The next attempt may be on its way into the log. A retry passes its number over.
        active.cancel(job_id, through=job.attempt + 1)


def cancel_where_recorded(active: ActiveJobs, log: EventLog) -> None:
    """Cancel what the log says was cancelled while no nudge could reach this process.

    Raises:
        LogUnavailable: The log cannot be read.
    """
    for job_id in active.jobs():
        cancel_if_recorded(job_id, active, log)
