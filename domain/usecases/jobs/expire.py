"""Ends jobs whose deadline has passed."""

from __future__ import annotations

from dataclasses import dataclass

from domain.job.listing import JobViews
from domain.job.state import DEADLINE
from domain.ports import Clock
from domain.usecases.jobs.cancel import JobCancellation
from domain.values import JobId, rfc3339


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExpiry:
    """Expires overdue jobs; one per process.

    Attributes:
        views: Lists the overdue jobs.
        clock: The present.
        cancellation: Ends a job.
    """

    views: JobViews
    clock: Clock
    cancellation: JobCancellation

    def expire_overdue(self) -> tuple[JobId, ...]:
        """Cancel every open job whose deadline has passed.

        A waiting job expires here. A running job is stopped like a cancelled one and expires with
        the items that it has emitted. Safe at any time and in several processes at once.

        Returns:
            The jobs whose end is recorded as requested.

        Raises:
            LogUnavailable: A request was not recorded; the remaining jobs wait for the next call.
        """
        late = tuple(view.id for view in self.views.overdue(rfc3339(self.clock.now())))
        for job_id in late:
            self.cancellation.cancel(job_id, reason=DEADLINE)
        return late
