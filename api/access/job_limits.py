"""Limits of the jobs that this process accepts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from domain.values import ATTEMPTS_MAX, WORKER_DEATHS_MAX, Priority

#: How long an interactive job may wait for memory before further ones are refused, in seconds.
MEMORY_WAIT_S: Final = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Limits of every job that this process accepts.

    Attributes:
        max_tokens_default: Most tokens of a request that names no limit.
        attempts_max: Attempts that may die or fail before the job fails for good.
        worker_deaths_max: Workers in a row that may die on the job before its first item.
        queue_limit: Most interactive jobs that may wait.
        batch_queue_limit: Most batch jobs that may wait.
        memory_wait_s: As ``MEMORY_WAIT_S``; 0 for any time.
        disconnect_grace_s: How long a job whose client left waits for the client's next try.
        dedup_grace_s: How long a repeat waits for the first client to leave.
        join_window_s: How long after its end a job can be joined.
    """

    max_tokens_default: int = 4096
    attempts_max: int = ATTEMPTS_MAX
    worker_deaths_max: int = WORKER_DEATHS_MAX
    queue_limit: int = 1000
    batch_queue_limit: int = 100_000
    memory_wait_s: float = MEMORY_WAIT_S
    disconnect_grace_s: float = 1.0
    dedup_grace_s: float = 0.25
    join_window_s: float = 600.0

    def queue_limit_of(self, priority: Priority) -> int:
        """Return the most jobs of a queue that may wait."""
        return self.queue_limit if priority is Priority.INTERACTIVE else self.batch_queue_limit
