"""Rules of the jobs that this process accepts."""

from __future__ import annotations

from dataclasses import dataclass

from domain.job.commands import SubmitJob
from domain.values import ATTEMPTS_MAX, WORKER_DEATHS_MAX, Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRules:
    """Rules of every job that this process accepts.

    Attributes:
        attempts_max: Attempts that may die or fail before the job fails for good.
        worker_deaths_max: Workers in a row that may die on the job before its first item.
        queue_limit: Most interactive jobs that may wait.
        batch_queue_limit: Most batch jobs that may wait.
        memory_wait_s: How long an interactive job may wait for memory before further ones are
            refused, in seconds; 0 for any time.
        start_within_s: When a job that has not begun expires, unless the request sets it.
        finish_within_s: When a job that has not ended expires, unless the request sets it.
        disconnect_grace_s: How long a job whose client left waits for the client's next try.
        dedup_grace_s: How long a repeat waits for the first client to leave.
        join_window_s: How long after its end a job can be joined.
    """

    attempts_max: int = ATTEMPTS_MAX
    worker_deaths_max: int = WORKER_DEATHS_MAX
    queue_limit: int = 1000
    batch_queue_limit: int = 100_000
    memory_wait_s: float = 0.0
    start_within_s: float | None = None
    finish_within_s: float | None = None
    disconnect_grace_s: float = 1.0
    dedup_grace_s: float = 0.25
    join_window_s: float = 600.0

    def queue_limit_of(self, priority: Priority) -> int:
        """Return the most jobs of a queue that may wait."""
        return self.queue_limit if priority is Priority.INTERACTIVE else self.batch_queue_limit

    def memory_wait_of(self, job: SubmitJob) -> float:
        """Return how long others may wait for memory before a job is refused; 0 for any time."""
        if job.request.embedding is not None:
            return 0.0  # vectors take no memory of contexts
        waits = job.waits_for_model or job.priority is not Priority.INTERACTIVE
        return 0.0 if waits else self.memory_wait_s
