"""Cancels jobs, and enqueues again those that ended without an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, Literal

from domain.engine.workers import ControlSignals
from domain.errors import NotRetryable, QueueUnavailable, SemanticError, Unavailable
from domain.events.job import JobCancelled, JobCancelRequested, JobRetried
from domain.job.commit import commit, load_job
from domain.job.decisions import require_retryable
from domain.job.fair_scheduler import enqueue, line_of
from domain.job.listing import JobFilter, JobViews
from domain.job.ports import ItemBacklog, ItemSink, JobQueue
from domain.job.state import Job
from domain.job.terminal_item import republish_end
from domain.log.ports import EventLog, PayloadStore
from domain.ports import IdSource
from domain.values import JobId, JobStatus, Usage

#: What became of a job in a change of many; ``unchanged``: it had ended.
BulkResult = Literal["matched", "cancelled", "requested", "retried", "unchanged", "refused"]

#: The states from which a job can be cancelled or retried, in the order in which that is done.
_CANCELLABLE: Final = (JobStatus.HELD, JobStatus.QUEUED, JobStatus.RUNNING)
_RETRYABLE: Final = (JobStatus.FAILED, JobStatus.EXPIRED, JobStatus.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancellation:
    """Cancels jobs, and puts ended ones back into their queue; one per process.

    Attributes:
        payloads: Has the answer of a job that ended before it could be cancelled, and the request
            of one that is put back.
    """

    log: EventLog
    payloads: PayloadStore
    queue: JobQueue
    sink: ItemSink
    backlog: ItemBacklog
    signals: ControlSignals
    ids: IdSource

    def cancel(self, job_id: JobId, *, reason: str) -> Job:
        """Record the request, then end the job if it waits, else nudge its worker.

        Idempotent: a job that has ended is returned as it is.

        Raises:
            JobNotFound: There is no such job.
            LogUnavailable: The request was not recorded, or the answer cannot be read.
        """
        job = commit(job_id, JobCancelRequested(reason=reason), log=self.log, ids=self.ids)
        if job.status.is_terminal:
            return job
        try:
            if self.take_waiting(job):
                return self.end_waiting(job)
            self.signals.nudge_cancel(job_id)
        except QueueUnavailable:
            # The request is recorded: a worker reads it before it starts the job.
            return job
        return job

    def take_waiting(self, job: Job) -> bool:
        """Take a job out of its queue; return whether it waited there, or is held.

        Raises:
            QueueUnavailable: The broker cannot be reached.
        """
        asked = job.submitted
        if job.status is JobStatus.HELD:
            return True  # in no queue, and after the request for its end it is not released
        return self.queue.remove(
            job.id, asked.priority, line=line_of(asked.agent, asked.owner), model=asked.bound_model
        )

    def put_back(self, job: Job) -> None:
        """Put a job that was taken out of its queue back into it.

        Raises:
            QueueUnavailable: The broker cannot be reached; the reconciler enqueues the job later.
        """
        enqueue(self.queue, job.id, job.submitted)

    def publish_end(self, job: Job) -> None:
        """Publish the terminal item of an ended job, unless it is there or its text is lost.

        Raises:
            QueueUnavailable: The broker cannot be reached.
            LogUnavailable: The answer cannot be read.
        """
        republish_end(job, backlog=self.backlog, sink=self.sink, payloads=self.payloads)

    def end_waiting(self, job: Job) -> Job:
        """End a job that no worker has and no queue holds, and publish its terminal item."""

        def confirm(now: Job) -> JobCancelled | None:
            # A job that ended and was retried meanwhile is not cancelled by the old request.
            is_over = now.status.is_terminal
            return None if is_over else JobCancelled(attempt=0, usage=Usage())

        now = commit(job.id, confirm, log=self.log, ids=self.ids)
        if now.status.is_terminal:
            self.publish_end(now)
        else:
            self.put_back(now)
        return now

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
        self.payloads.get(job.submitted.request)
        # The terminal item of a job that no attempt ended carries the number of the next attempt.
        self.backlog.forget(job_id, through=job.attempt + 1)
        ended = job.attempt

        def again(now: Job) -> JobRetried:
            # A concurrent retry won, and the items of its attempt are not dropped.
            if now.attempt != ended:
                raise NotRetryable(job_id, now.status)
            return JobRetried(reason=reason)

        job = commit(job_id, again, log=self.log, ids=self.ids)
        # The reconciler enqueues the job if the broker goes away just now.
        with suppress(QueueUnavailable):
            if job.status is JobStatus.QUEUED:  # it may wait for other jobs again
                enqueue(self.queue, job.id, job.submitted)
        return job


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkStep:
    """One job of a change of many, as it is afterwards; ``error``: why it was refused."""

    job: Job
    result: BulkResult
    error: SemanticError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkChange:
    """Does the same with all jobs of a filter.

    Attributes:
        limit: Jobs of one call.
        is_dry: Whether the jobs are only looked up.
    """

    views: JobViews
    cancellation: JobCancellation
    reason: str
    limit: int
    is_dry: bool = False

    def cancel(self, wanted: JobFilter) -> tuple[list[BulkStep], bool]:
        """Cancel the jobs that have not ended; return them, and whether there are more.

        Raises:
            LogUnavailable: No job was changed; a failure after the first one ends the list.
        """
        return self._change(wanted, _CANCELLABLE, self._cancel_one)

    def retry(self, wanted: JobFilter) -> tuple[list[BulkStep], bool]:
        """Enqueue the jobs again that ended without an answer; return as ``cancel`` does.

        Raises:
            LogUnavailable: No job was changed; a failure after the first one ends the list.
            QueueUnavailable: The same of the broker.
        """
        return self._change(wanted, _RETRYABLE, self._retry_one)

    def _change(
        self,
        wanted: JobFilter,
        statuses: Sequence[JobStatus],
        change: Callable[[Job], BulkStep],
    ) -> tuple[list[BulkStep], bool]:
        found: list[Job] = []
        for status in statuses:
            if wanted.status in {None, status}:
                page = self.views.page(replace(wanted, status=status), limit=self.limit + 1)
                found += page.jobs
        steps: list[BulkStep] = []
        for job in found[: self.limit]:
            try:
                steps.append(BulkStep(job=job, result="matched") if self.is_dry else change(job))
            except Unavailable:
                if not steps:
                    raise
                break
            except SemanticError as error:
                steps.append(BulkStep(job=job, result="refused", error=error))
        return steps, len(found) > len(steps)

    def _cancel_one(self, job: Job) -> BulkStep:
        after = self.cancellation.cancel(job.id, reason=self.reason)
        if not after.status.is_terminal:
            return BulkStep(job=after, result="requested")
        is_cancelled = after.status is JobStatus.CANCELLED
        return BulkStep(job=after, result="cancelled" if is_cancelled else "unchanged")

    def _retry_one(self, job: Job) -> BulkStep:
        after = self.cancellation.retry(job.id, reason=self.reason)
        return BulkStep(job=after, result="retried")
