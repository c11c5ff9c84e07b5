"""The events that a proposed event leads to; pure, as ``domain.job.state`` is.

A worker or a request proposes what happened as the event that would record it. The record of the
job decides: the event stands, others follow it or take its place, or nothing is new.
"""

from __future__ import annotations

from typing import assert_never

from domain.chat.items import Failed
from domain.errors import (
    InvalidRequest,
    JobAlreadyTerminal,
    ModelNotFound,
    NotRetryable,
    StaleAttempt,
)
from domain.events.job import (
    AttemptFailed,
    AttemptStarted,
    JobAttached,
    JobCancelled,
    JobCancelRequested,
    JobCompleted,
    JobEvent,
    JobExpired,
    JobFailed,
    JobHidden,
    JobRelabelled,
    JobReleased,
    JobRetried,
)
from domain.job.state import Job, evolve
from domain.values import JobStatus

#: What a worker proposes about an attempt.
AttemptProposal = AttemptStarted | JobCompleted | AttemptFailed | JobCancelled
JobProposal = (
    JobCancelRequested
    | JobAttached
    | JobReleased
    | JobRetried
    | JobHidden
    | JobRelabelled
    | AttemptProposal
)
#: Errors of a job that failed before any attempt because it is no valid request.
_REFUSED = frozenset({InvalidRequest.code, ModelNotFound.code})
#: Attached repeats that the log records per job; further ones are attached without an event.
ATTACHED_MAX = 100


def decide(job: Job, proposal: JobProposal) -> tuple[JobEvent, ...]:
    """Return the events that a proposal leads to; none if its effect is already there.

    Raises:
        JobAlreadyTerminal: The job has ended.
        StaleAttempt: The proposal is of an attempt that is over.
        NotRetryable: ``JobRetried`` for a job that ``require_retryable`` refuses.
    """
    if isinstance(proposal, AttemptProposal):
        return _decide_attempt(job, proposal)
    if isinstance(proposal, JobRetried):
        require_retryable(job)
        return (proposal,)
    return () if _is_known(job, proposal) else (proposal,)


def _is_known(
    job: Job, proposal: JobCancelRequested | JobAttached | JobReleased | JobHidden | JobRelabelled
) -> bool:
    """Whether the effect of a proposal is already there."""
    match proposal:
        case JobCancelRequested():
            return job.status.is_terminal or job.cancel_requested
        case JobAttached():
            return job.attached >= ATTACHED_MAX
        case JobReleased():
            return job.status is not JobStatus.HELD or job.cancel_requested
        case JobHidden():
            return job.hidden
        case JobRelabelled():
            return job.submitted.wire == proposal.wire
        case _:
            assert_never(proposal)


def _decide_attempt(job: Job, proposal: AttemptProposal) -> tuple[JobEvent, ...]:
    match proposal:
        case AttemptStarted():
            if proposal.attempt != job.attempt + 1 or job.status is JobStatus.HELD:
                raise StaleAttempt(job.id, attempt=proposal.attempt, current=job.attempt)
            _require_open(job)
            return () if job.is_rejected else (proposal,)
        case JobCompleted():
            _require_active_attempt(job, proposal.attempt)
            return (proposal,)
        case AttemptFailed():
            return _fail(job, proposal)
        case JobCancelled():
            return _cancel(job, proposal)
        case _:
            assert_never(proposal)


def failed_attempt(*, attempt: int, failure: Failed) -> AttemptFailed:
    """Return the end of an attempt without an answer; 0 is one that could not even start."""
    return AttemptFailed(
        attempt=attempt, error=failure.error, message=failure.message, retryable=failure.retryable
    )


def _fail(job: Job, failed: AttemptFailed) -> tuple[JobEvent, ...]:
    """A retryable failure puts the job back until it has failed too often."""
    _require_open(job)
    if failed.attempt:
        _require_active_attempt(job, failed.attempt)
    counted_failures = evolve(job, failed).counted_failures
    if failed.retryable and counted_failures < job.submitted.attempts_max:
        return (failed,)
    return (failed, JobFailed(error=failed.error, message=failed.message))


def _cancel(job: Job, cancelled: JobCancelled) -> tuple[JobEvent, ...]:
    """The job has stopped: on request, or at a deadline, which the record knows."""
    if job.status is JobStatus.CANCELLED or (job.expiring and job.status is JobStatus.EXPIRED):
        return ()
    _require_open(job)
    if cancelled.attempt:
        _require_active_attempt(job, cancelled.attempt)
    if not job.cancel_requested:
        return ()  # the request was for the job before it was retried
    if not job.expiring:
        return (cancelled,)
    start, finish = job.submitted.deadline, job.submitted.finish_deadline
    # The one to finish once it has begun, else the one to start.
    deadline = (finish or start) if job.attempt else (start or finish)
    return (
        JobExpired(
            deadline=deadline or "",
            attempt=cancelled.attempt,
            usage=cancelled.usage,
            output=cancelled.output,
            absent_model=job.submitted.bound_model if job.model_absent else None,
            timings=cancelled.timings,
        ),
    )


def require_retryable(job: Job) -> None:
    """Refuse to retry a job that is open, has an answer, or was never a valid request.

    Raises:
        NotRetryable: With the reason.
    """
    if not job.status.is_terminal or job.status is JobStatus.COMPLETED:
        raise NotRetryable(job.id, job.status)
    # A line of a batch that is no valid request: its payload is the line, not a request.
    if job.started is None and isinstance(job.ending, Failed) and job.ending.error in _REFUSED:
        raise NotRetryable(job.id, job.status, why=job.ending.message)


def _require_open(job: Job) -> None:
    if job.status.is_terminal:
        raise JobAlreadyTerminal(job.id, job.status)


def _require_active_attempt(job: Job, attempt: int) -> None:
    if job.attempt != attempt or not job.active_attempt:
        raise StaleAttempt(job.id, attempt=attempt, current=job.attempt)
