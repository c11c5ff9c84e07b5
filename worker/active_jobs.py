"""The jobs that this process runs at the moment, and their cancellation."""

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
