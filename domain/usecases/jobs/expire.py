"""End what is later than it was allowed to be."""

from __future__ import annotations

from domain.job.listing import JobViews
from domain.job.ports import ControlSignals, ItemBacklog, ItemSink, JobQueue
from domain.job.state import DEADLINE
from domain.log.ports import EventLog
from domain.ports import IdSource
from domain.usecases.jobs.cancel import cancel
from domain.values import JobId


def expire_overdue(
    now: str,
    *,
    views: JobViews,
    log: EventLog,
    queue: JobQueue,
    sink: ItemSink,
    backlog: ItemBacklog,
    signals: ControlSignals,
    ids: IdSource,
) -> tuple[JobId, ...]:
    """Stop every open job whose deadline has passed.

    A waiting job expires here. A running one is stopped like a cancelled one and expires with what
    it has said so far. May run at any time and in several processes at once.

    Args:
        now: The instant, as the log writes them.
        views: Tells which jobs are late.
        log: Where the wish is recorded.
        queue: A waiting job is taken out of it.
        sink: Gets the last item of a waiting job.
        backlog: What a waiting job has said before.
        signals: Reach whoever runs a job.
        ids: Names for the events.

    Returns:
        The jobs whose end was asked for.

    Raises:
        LogUnavailable: A wish could not be recorded; the rest waits for the next turn.
    """
    late = tuple(view.id for view in views.overdue(now))
    for job_id in late:
        cancel(
            job_id,
            reason=DEADLINE,
            log=log,
            queue=queue,
            sink=sink,
            backlog=backlog,
            signals=signals,
            ids=ids,
        )
    return late
