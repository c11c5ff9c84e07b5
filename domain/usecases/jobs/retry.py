"""Try a job again that ended without an answer."""

from __future__ import annotations

from contextlib import suppress

from domain.errors import NotRetryable, QueueUnavailable
from domain.job.commands import Retry
from domain.job.ports import ItemBacklog, JobQueue
from domain.job.state import Job
from domain.log.ports import EventLog
from domain.ports import IdSource
from domain.usecases.jobs.commit import commit, load_job
from domain.values import JobId, JobStatus


def retry(
    job_id: JobId,
    *,
    reason: str,
    log: EventLog,
    queue: JobQueue,
    backlog: ItemBacklog,
    ids: IdSource,
) -> Job:
    """Put a failed, cancelled or expired job back into its queue; it begins anew.

    What it said before is forgotten first, and what is still on its way is refused, so that nobody
    takes the old end for the new one. Its deadlines were those of the first time and count no more.

    Raises:
        JobNotFound: There is no such job.
        NotRetryable: It is open, or has its answer.
        QueueUnavailable: The broker cannot be reached; nothing has changed.
        LogUnavailable: The wish could not be recorded.
    """
    job = load_job(job_id, log=log).job
    if not job.status.is_terminal or job.status is JobStatus.COMPLETED:
        raise NotRetryable(job_id, job.status)
    # The last word of a job that no attempt ended counts as one of the attempt after it.
    backlog.forget(job_id, through=job.attempt + 1)
    ended = job.attempt

    def again(now: Job) -> Retry:
        # Another retry was faster, and what that one said is not forgotten.
        if now.attempt != ended:
            raise NotRetryable(job_id, now.status)
        return Retry(reason=reason)

    job = commit(job_id, again, log=log, ids=ids)
    assert job.submitted is not None
    # The reconciler queues it if the broker went away just now.
    with suppress(QueueUnavailable):
        queue.enqueue(job_id, job.submitted.priority, agent=job.submitted.agent)
    return job
