"""Enqueues accepted jobs that the queue lost: the log is the truth, the queue a hint."""

from __future__ import annotations

from dataclasses import dataclass

from domain.job.fair_scheduler import line_of
from domain.job.listing import JobViews
from domain.job.ports import JobQueue
from domain.values import JobId, Priority


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReconciler:
    """Compares the unfinished jobs of the log with the queue; one per process.

    Attributes:
        views: Lists the unfinished jobs.
        queue: Receives those that no queue and no worker holds.
    """

    views: JobViews
    queue: JobQueue

    def reconcile(self) -> tuple[JobId, ...]:
        """Enqueue every unfinished job that no queue and no worker holds.

        ``JobQueue.enqueue`` ignores a job that is queued or in hand, so this is safe at any time
        and in several processes at once.

        Returns:
            The jobs that were lost and are enqueued again.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        return tuple(
            view.id
            for view in self.views.unfinished()
            if self.queue.enqueue(
                view.id,
                Priority(view.submitted.priority),
                line=line_of(view.submitted.agent, view.submitted.owner),
                model=view.submitted.bound_model,
            )
        )
