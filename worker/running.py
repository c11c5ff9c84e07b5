"""Which jobs this process runs just now."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from domain.ports import Cancellable, EventLog
from domain.usecases.commit import load_job
from domain.values import JobId


class ActiveJobs:
    """``domain.ports.RunningJobs`` for the actor threads and the control listener.

    Invariant: a handle is held only for a claimed job.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: dict[JobId, Cancellable | None] = {}
        self._cancelled: set[JobId] = set()

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
                    self._cancelled.discard(job_id)

    def attach(self, job_id: JobId, handle: Cancellable) -> None:
        """Say what to cancel; a nudge that came since the claim takes effect at once."""
        with self._lock:
            assert job_id in self._handles, "a handle needs a claim first"
            self._handles[job_id] = handle
            nudged = job_id in self._cancelled
        if nudged:
            handle.cancel()

    def cancel(self, job_id: JobId) -> None:
        """Cancel a job if this process runs it; called by the control listener."""
        with self._lock:
            if job_id not in self._handles:
                return
            self._cancelled.add(job_id)
            handle = self._handles[job_id]
        if handle is not None:
            handle.cancel()

    def jobs(self) -> tuple[JobId, ...]:
        """Return the jobs that are claimed just now."""
        with self._lock:
            return tuple(self._handles)

    def __len__(self) -> int:
        with self._lock:
            return len(self._handles)


def cancel_where_recorded(active: ActiveJobs, log: EventLog) -> None:
    """Cancel what the log says was cancelled while no nudge could reach this process."""
    for job_id in active.jobs():
        if load_job(job_id, log=log).job.cancel_requested:
            active.cancel(job_id)
