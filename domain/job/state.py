"""The state of a job, folded from its events, and the events that a command leads to.

    queued ──AttemptStarted──> running ──JobCompleted──> completed
      ^                          │ └─────JobFailed─────> failed
      └───────AttemptFailed──────┘
    queued | running ──JobCancelled──> cancelled
    queued | running ──JobExpired────> expired
    failed | cancelled | expired ──JobRetried──> queued

``decide`` returns the events of a command; ``evolve`` returns the state after an event. Both are
pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import assert_never

from domain.chat.items import Failed, Finished
from domain.errors import (
    ConcurrencyConflict,
    DeviceFailed,
    Draining,
    EngineLost,
    GenerationCancelled,
    JobAlreadyTerminal,
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
    JobSubmitted,
)
from domain.job.commands import (
    Attach,
    AttemptCommand,
    CompleteAttempt,
    ConfirmCancel,
    CreateJob,
    FailAttempt,
    Hide,
    JobCommand,
    RequestCancel,
    Retry,
    StartAttempt,
)
from domain.values import Digest, JobId, JobStatus, StopReason

#: Attached repeats that the log records per job; further ones are attached without an event.
ATTACHED_MAX = 100
#: Reason of a ``JobCancelRequested`` for a passed deadline: the job then expires.
DEADLINE = "deadline"
#: Errors that end an attempt and are not the fault of its job.
_NO_STRIKES = {DeviceFailed.code, Draining.code, EngineLost.code, GenerationCancelled.code}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The state of one job.

    Attributes:
        id: The job.
        version: Number of folded events; the expected version of the next append.
        status: Its status.
        attempt: Number of the latest attempt, or the one that a retry passed over; 0 before any.
        speaking: Whether that attempt may still emit items.
        strikes: Attempts that failed, except for ``_NO_STRIKES``, and deaths except the first.
        deaths: Attempts that ended with their worker or its engine.
        resumed_tokens: Tokens that stood when the latest attempt began.
        silent_deaths: Attempts in a row that died before they emitted a token of their own.
        device_failures: The same for attempts that an error of the GPU ended.
        started: The start event of the latest attempt, if there is one.
        cancel_requested: Whether a cancellation is recorded.
        expiring: Whether a deadline caused that cancellation.
        attached: Recorded repeats that got this answer.
        hidden: Whether the caller deleted the answer.
        submitted: The acceptance; ``None`` only before the first event.
        ending: The terminal item of its stream, once it has ended.
        output: Digest of the stored answer; partial if the job was stopped.
    """

    id: JobId
    version: int = 0
    status: JobStatus = JobStatus.QUEUED
    attempt: int = 0
    speaking: bool = False
    strikes: int = 0
    deaths: int = 0
    resumed_tokens: int = 0
    silent_deaths: int = 0
    device_failures: int = 0
    started: AttemptStarted | None = None
    cancel_requested: bool = False
    expiring: bool = False
    attached: int = 0
    hidden: bool = False
    submitted: JobSubmitted | None = None
    ending: Finished | Failed | None = None
    output: Digest | None = None


def fold(job_id: JobId, events: Iterable[JobEvent]) -> Job:
    """Return the state after ``events``."""
    job = Job(id=job_id)
    for event in events:
        job = evolve(job, event)
    return job


def evolve(job: Job, event: JobEvent) -> Job:
    """Return ``job`` after ``event``."""
    return replace(_apply(event, job), version=job.version + 1)


def decide(job: Job, command: JobCommand) -> tuple[JobEvent, ...]:
    """Return the events of ``command``; none if its effect is already there.

    Raises:
        JobAlreadyTerminal: The job has ended.
        StaleAttempt: The command is of an attempt that is over.
        ConcurrencyConflict: ``CreateJob`` for a job that exists.
        NotRetryable: ``Retry`` for a job that is open or has completed.
    """
    if isinstance(command, AttemptCommand):
        return _decide_attempt(job, command)
    match command:
        case CreateJob():
            if job.version:
                raise ConcurrencyConflict(job.id, expected=0, actual=job.version)
            return (command.submitted,)
        case RequestCancel():
            return _request_cancel(job, command)
        case Attach():
            joined = JobAttached(reason=command.reason, request_id=command.request_id)
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
    )
    return (started,)


def _complete(job: Job, command: CompleteAttempt) -> tuple[JobEvent, ...]:
    _require_speaking(job, command.attempt)
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
        _require_speaking(job, command.attempt)
    assert job.submitted is not None
    failure, attempt = command.failure, command.attempt
    failed = AttemptFailed(
        attempt=attempt, error=failure.error, message=failure.message, retryable=failure.retryable
    )
    strikes = evolve(job, failed).strikes
    if failure.retryable and strikes < job.submitted.attempts_max:
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
        _require_speaking(job, command.attempt)
    attempt, usage, output = command.attempt, command.usage, command.output
    if job.expiring:
        late = missed_deadline(job)
        return (JobExpired(deadline=late, attempt=attempt, usage=usage, output=output),)
    return (JobCancelled(attempt=attempt, usage=usage, output=output),)


def missed_deadline(job: Job) -> str:
    """Return the deadline that ends an expiring job: to finish once it has begun, else to start."""
    assert job.submitted is not None
    start, finish = job.submitted.deadline, job.submitted.finish_deadline
    return (finish or start or "") if job.attempt else (start or finish or "")


def _retry(job: Job, command: Retry) -> tuple[JobEvent, ...]:
    if not job.status.is_terminal or job.status is JobStatus.COMPLETED:
        raise NotRetryable(job.id, job.status)
    return (JobRetried(reason=command.reason),)


def _require_open(job: Job) -> None:
    assert job.submitted is not None, "a command reached a job that was never submitted"
    if job.status.is_terminal:
        raise JobAlreadyTerminal(job.id, job.status)


def _require_speaking(job: Job, attempt: int) -> None:
    if job.attempt != attempt or not job.speaking:
        raise StaleAttempt(job.id, attempt=attempt, current=job.attempt)


@singledispatch
def _apply(event: JobEvent, job: Job) -> Job:
    raise AssertionError(event, job)


@_apply.register
def _(event: JobAttached, job: Job) -> Job:
    del event
    return replace(job, attached=job.attached + 1)


@_apply.register
def _(event: JobHidden, job: Job) -> Job:
    del event
    return replace(job, hidden=True)


@_apply.register
def _(event: JobSubmitted, job: Job) -> Job:
    return replace(job, submitted=event, status=JobStatus.QUEUED)


@_apply.register
def _(event: AttemptStarted, job: Job) -> Job:
    return replace(
        job,
        status=JobStatus.RUNNING,
        attempt=event.attempt,
        speaking=True,
        strikes=strikes_now(job),
        deaths=job.deaths + job.speaking,
        silent_deaths=silent_deaths(job, event.resumed_tokens),
        device_failures=device_failures(job, event.resumed_tokens),
        resumed_tokens=event.resumed_tokens,
        started=event,
    )


def strikes_now(job: Job) -> int:
    """Return the strikes of a job that runs no attempt; its first death may be due to another."""
    return job.strikes + (job.speaking and job.deaths > 0)


def silent_deaths(job: Job, emitted_tokens: int) -> int:
    """Return how many attempts in a row died without a new token, with ``emitted_tokens`` emitted.

    A worker may be killed for reasons outside of any job. Workers that die again before the job
    emits one more token probably die of that job.
    """
    if not job.speaking:
        return job.silent_deaths
    return 0 if emitted_tokens > job.resumed_tokens else job.silent_deaths + 1


def device_failures(job: Job, emitted_tokens: int) -> int:
    """Return how many attempts in a row the GPU ended without a new token; as above."""
    return 0 if emitted_tokens > job.resumed_tokens else job.device_failures


@_apply.register
def _(event: AttemptFailed, job: Job) -> Job:
    has_died = event.error == EngineLost.code and event.attempt > 0
    is_strike = job.deaths > 0 if has_died else event.error not in _NO_STRIKES
    return replace(
        job,
        status=JobStatus.QUEUED,
        speaking=False,
        strikes=job.strikes + is_strike,
        deaths=job.deaths + has_died,
        # The worker recorded the failure, so it lives.
        silent_deaths=0,
        device_failures=job.device_failures + (event.error == DeviceFailed.code),
    )


@_apply.register
def _(event: JobCancelRequested, job: Job) -> Job:
    return replace(job, cancel_requested=True, expiring=event.reason == DEADLINE)


@_apply.register
def _(event: JobCancelled, job: Job) -> Job:
    ending = Finished(stop_reason=StopReason.CANCELLED, usage=event.usage)
    return replace(
        job, status=JobStatus.CANCELLED, speaking=False, ending=ending, output=event.output
    )


@_apply.register
def _(event: JobCompleted, job: Job) -> Job:
    ending = Finished(
        stop_reason=event.stop_reason, usage=event.usage, stop_sequence=event.stop_sequence
    )
    return replace(
        job, status=JobStatus.COMPLETED, speaking=False, ending=ending, output=event.output
    )


@_apply.register
def _(event: JobFailed, job: Job) -> Job:
    ending = Failed(error=event.error, message=event.message, retryable=False)
    return replace(job, status=JobStatus.FAILED, speaking=False, ending=ending)


@_apply.register
def _(event: JobExpired, job: Job) -> Job:
    late = f"the deadline {event.deadline} passed"
    ending = Failed(error="expired", message=late, retryable=False)
    return replace(
        job, status=JobStatus.EXPIRED, speaking=False, ending=ending, output=event.output
    )


@_apply.register
def _(event: JobRetried, job: Job) -> Job:
    del event
    assert job.submitted is not None
    # A passed deadline would expire the retry at once.
    timeless = replace(job.submitted, deadline=None, finish_deadline=None)
    return replace(
        job,
        submitted=timeless,
        status=JobStatus.QUEUED,
        # Skipped: the terminal item of a job that no attempt ended carries the next number.
        attempt=job.attempt + 1,
        speaking=False,
        strikes=0,
        deaths=0,
        resumed_tokens=0,
        silent_deaths=0,
        device_failures=0,
        cancel_requested=False,
        expiring=False,
        ending=None,
        output=None,
    )
