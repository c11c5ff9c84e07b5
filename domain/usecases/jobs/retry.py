"""Runs a job again that ended without an answer."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from domain.errors import NotRetryable, QueueUnavailable
from domain.job.commands import Retry
from domain.job.decisions import require_retryable
from domain.job.fair_scheduler import line_of
from domain.job.ports import ItemBacklog, JobQueue
from domain.job.state import Job
from domain.log.ports import EventLog, PayloadStore
from domain.ports import IdSource
from domain.usecases.jobs.commit import commit, load_job
from domain.values import JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetry:
    """Puts ended jobs back into their queue; one per process.

    Attributes:
        log: Records the retry.
        payloads: Has the request, unless it was erased.
        queue: Receives the job.
        backlog: Drops the items of the attempts before.
        ids: Ids of the new events.
    """

    log: EventLog
    payloads: PayloadStore
    queue: JobQueue
    backlog: ItemBacklog
    ids: IdSource

    def retry(self, job_id: JobId, *, reason: str) -> Job:
        """Put a failed, cancelled or expired job back into its queue; its answer begins anew.

        The items of earlier attempts are dropped first, and late ones are refused, so that no
        reader takes the old end for the new one. The deadlines of the job no longer apply.

        Raises:
            JobNotFound: There is no such job.
            NotRetryable: The job is open, has completed, or was never a valid request.
            PayloadMissing: The request was erased, so there is nothing to run.
            PayloadDamaged: The request is not as it was written.
            QueueUnavailable: The broker cannot be reached; nothing has changed.
            LogUnavailable: The retry was not recorded.
        """
        job = load_job(job_id, log=self.log).job
        require_retryable(job)
        if job.submitted is not None:
            self.payloads.get(job.submitted.request)
        # The terminal item of a job that no attempt ended carries the number of the next attempt.
        self.backlog.forget(job_id, through=job.attempt + 1)
        ended = job.attempt

        def again(now: Job) -> Retry:
            # A concurrent retry won, and the items of its attempt are not dropped.
            if now.attempt != ended:
                raise NotRetryable(job_id, now.status)
            return Retry(reason=reason)

        job = commit(job_id, again, log=self.log, ids=self.ids)
        # The reconciler enqueues the job if the broker goes away just now.
        with suppress(QueueUnavailable):
            asked = job.submitted
            self.queue.enqueue(
                job_id,
                asked.priority,
                line=line_of(asked.agent, asked.owner),
                model=asked.bound_model,
            )
        return job
