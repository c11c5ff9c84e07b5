"""Queue again whatever was accepted and is not done: the log is the truth, the queue a hint."""

from __future__ import annotations

from domain.job.listing import JobViews
from domain.job.ports import JobQueue
from domain.values import JobId, Priority


def reconcile(*, views: JobViews, queue: JobQueue) -> tuple[JobId, ...]:
    """Queue every unfinished job that no queue and no worker holds.

    ``JobQueue.enqueue`` leaves a job alone that is queued or in hand, so this may run at any time
    and in several processes at once.

    Returns:
        The jobs that had been lost and are queued again.

    Raises:
        QueueUnavailable: The broker cannot be reached.
    """
    return tuple(
        view.id
        for view in views.unfinished()
        if queue.enqueue(view.id, Priority(view.priority), agent=view.agent)
    )
