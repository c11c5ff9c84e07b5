"""Stop a job, wherever it is."""

from __future__ import annotations

from domain.chat.items import StreamItem
from domain.errors import QueueUnavailable
from domain.job.commands import ConfirmCancel, RequestCancel
from domain.job.ports import ControlSignals, ItemBacklog, ItemSink, JobQueue
from domain.job.state import Job
from domain.log.ports import EventLog
from domain.ports import IdSource
from domain.usecases.jobs.commit import commit
from domain.values import JobId, Usage


def cancel(
    job_id: JobId,
    *,
    reason: str,
    log: EventLog,
    queue: JobQueue,
    sink: ItemSink,
    backlog: ItemBacklog,
    signals: ControlSignals,
    ids: IdSource,
) -> Job:
    """Record the wish, then fulfil it here if the job still waits, else nudge its worker.

    Idempotent: a job that has ended is returned as it is.

    Raises:
        JobNotFound: There is no such job.
        LogUnavailable: The wish could not be recorded.
    """
    job = commit(job_id, RequestCancel(reason=reason), log=log, ids=ids)
    if job.status.is_terminal:
        return job
    assert job.submitted is not None
    try:
        if queue.remove(job_id, job.submitted.priority, agent=job.submitted.agent):
            return _end_waiting(job, log=log, sink=sink, backlog=backlog, ids=ids)
        signals.nudge_cancel(job_id)
    except QueueUnavailable:
        # The wish is recorded: whoever takes the job next reads it before it starts.
        return job
    return job


def _end_waiting(
    job: Job, *, log: EventLog, sink: ItemSink, backlog: ItemBacklog, ids: IdSource
) -> Job:
    """Nobody has the job and nobody can get it any more, so its last word is said here."""

    def confirm(now: Job) -> ConfirmCancel | None:
        return None if now.status.is_terminal else ConfirmCancel(attempt=0, usage=Usage())

    ended = commit(job.id, confirm, log=log, ids=ids)
    said = backlog.read(job.id)
    if said and said[-1].is_terminal:
        return ended
    assert ended.ending is not None
    # Another hand may have begun it meanwhile: its words must not follow this one.
    last_word = StreamItem(n=len(said), attempt=ended.attempt + 1, body=ended.ending)
    sink.publish([(job.id, last_word)])
    return ended
