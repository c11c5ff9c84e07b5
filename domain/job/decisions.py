"""The events that a command to a job leads to; pure, as ``domain.job.state`` is."""

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
    JobRetried,
)
from domain.job.commands import (
    Attach,
    AttemptCommand,
    CompleteAttempt,
    ConfirmCancel,
    FailAttempt,
    Hide,
    JobCommand,
    RequestCancel,
    Retry,
    StartAttempt,
)
from domain.job.state import Job, evolve
from domain.values import JobStatus

#: Errors of a job that failed before any attempt because it is no valid request.
_REFUSED = frozenset({InvalidRequest.code, ModelNotFound.code})
#: Attached repeats that the log records per job; further ones are attached without an event.
ATTACHED_MAX = 100


def decide(job: Job, command: JobCommand) -> tuple[JobEvent, ...]:
    """Return the events of ``command``; none if its effect is already there.

    Raises:
        JobAlreadyTerminal: The job has ended.
        StaleAttempt: The command is of an attempt that is over.
        NotRetryable: ``Retry`` for a job that ``require_retryable`` refuses.
    """
    if isinstance(command, AttemptCommand):
        return _decide_attempt(job, command)
    match command:
        case RequestCancel():
            return _request_cancel(job, command)
        case Attach():
            joined = JobAttached(
                reason=command.reason, request_id=command.request_id, trace=command.trace
            )
            return (joined,) if job.attached < ATTACHED_MAX else ()
        case Retry():
            return _retry(job, command)
        case Hide():
            return () if job.hidden else (JobHidden(),)
        case _:
            assert_never(command)


def _decide_attempt(job: Job, command: AttemptCommand) -> tuple[JobEvent, ...]:
    match command:
        case StartAttempt():
            return _start(job, command)
        case CompleteAttempt():
            return _complete(job, command)
        case FailAttempt():
            return _fail(job, command)
        case ConfirmCancel():
            return _confirm_cancel(job, command)
        case _:
            assert_never(command)


def _start(job: Job, command: StartAttempt) -> tuple[JobEvent, ...]:
    _require_open(job)
    started = AttemptStarted(
        attempt=job.attempt + 1,
        worker=command.worker,
        model=command.model,
        fingerprint=command.fingerprint,
        prompt_tokens=command.prompt_tokens,
        cached_tokens=command.cached_tokens,
        cache_source=command.cache_source,
        first_item=command.first_item,
        resumed_tokens=command.resumed_tokens,
        sampling=command.sampling,
        prompt_hash=command.prompt_hash,
        thinking_limit=command.thinking_limit,
        known_tokens=command.known_tokens,
        encoding=command.encoding,
    )
    return (started,)


def _complete(job: Job, command: CompleteAttempt) -> tuple[JobEvent, ...]:
    _require_active_attempt(job, command.attempt)
    completed = JobCompleted(
        attempt=command.attempt,
        stop_reason=command.stop_reason,
        stop_sequence=command.stop_sequence,
        usage=command.usage,
        output=command.output,
        token_hash=command.token_hash,
        timings=command.timings,
    )
    return (completed,)


def _fail(job: Job, command: FailAttempt) -> tuple[JobEvent, ...]:
    """A retryable failure puts the job back until it has failed too often."""
    _require_open(job)
    if command.attempt:
        _require_active_attempt(job, command.attempt)
    failure, attempt = command.failure, command.attempt
    failed = AttemptFailed(
        attempt=attempt, error=failure.error, message=failure.message, retryable=failure.retryable
    )
    counted_failures = evolve(job, failed).counted_failures
    if failure.retryable and counted_failures < job.submitted.attempts_max:
        return (failed,)
    return (failed, JobFailed(error=failure.error, message=failure.message))


def _request_cancel(job: Job, command: RequestCancel) -> tuple[JobEvent, ...]:
    if job.status.is_terminal or job.cancel_requested:
        return ()
    return (JobCancelRequested(reason=command.reason),)


def _confirm_cancel(job: Job, command: ConfirmCancel) -> tuple[JobEvent, ...]:
    if job.status is JobStatus.CANCELLED or (job.expiring and job.status is JobStatus.EXPIRED):
        return ()
    _require_open(job)
    if command.attempt:
        _require_active_attempt(job, command.attempt)
    if not job.cancel_requested:
        return ()  # the request was for the job before it was retried
    if job.expiring:
        return (
            JobExpired(
                deadline=missed_deadline(job),
                attempt=command.attempt,
                usage=command.usage,
                output=command.output,
                absent_model=absent_model(job),
                timings=command.timings,
            ),
        )
    return (
        JobCancelled(
            attempt=command.attempt,
            usage=command.usage,
            output=command.output,
            timings=command.timings,
        ),
    )


def missed_deadline(job: Job) -> str:
    """Return the deadline that ends an expiring job: to finish once it has begun, else to start."""
    start, finish = job.submitted.deadline, job.submitted.finish_deadline
    return (finish or start or "") if job.attempt else (start or finish or "")


def absent_model(job: Job) -> str | None:
    """Return the model that an expiring job waited for, ``None`` after a deadline."""
    return job.submitted.bound_model if job.model_absent else None


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


def _retry(job: Job, command: Retry) -> tuple[JobEvent, ...]:
    require_retryable(job)
    return (JobRetried(reason=command.reason),)


def _require_open(job: Job) -> None:
    if job.status.is_terminal:
        raise JobAlreadyTerminal(job.id, job.status)


def _require_active_attempt(job: Job, attempt: int) -> None:
    if job.attempt != attempt or not job.active_attempt:
        raise StaleAttempt(job.id, attempt=attempt, current=job.attempt)
