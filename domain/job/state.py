"""The state of a job, folded from its events.

    queued ──AttemptStarted──> running ──JobCompleted──> completed
      ^                          │ └─────JobFailed─────> failed
      └───────AttemptFailed──────┘
    queued | running ──JobCancelled──> cancelled
    queued | running ──JobExpired────> expired
    failed | cancelled | expired ──JobRetried──> queued

``evolve`` returns the state after an event, and ``domain.job.decisions.decide`` the events of a
command. Both are pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import singledispatch

from domain.chat.items import Failed, Finished
from domain.errors import (
    DeviceFailed,
    Draining,
    EngineLost,
    GenerationCancelled,
    ModelChanged,
    QueueUnavailable,
    Unavailable,
)
from domain.events.job import (
    AttemptFailed,
    AttemptStarted,
    EmbeddingRequested,
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
from domain.values import Digest, JobId, JobStatus, StopReason

#: Reason of a ``JobCancelRequested`` for a passed deadline: the job then expires.
DEADLINE = "deadline"
#: Reason of a ``JobCancelRequested`` for a model that was not loaded for too long: as above.
MODEL_ABSENT = "model_absent"
#: Errors that end an attempt and are not the fault of its job.
_UNCOUNTED = {
    DeviceFailed.code,
    Draining.code,
    EngineLost.code,
    GenerationCancelled.code,
    QueueUnavailable.code,
    Unavailable.code,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The state of one job.

    Attributes:
        version: Number of folded events; the expected version of the next append.
        attempt: Number of the latest attempt, or the one that a retry passed over; 0 before any.
        active_attempt: Whether that attempt may still emit items.
        epoch: Number of the first of the attempts whose tokens belong together: all of them have
            the same fingerprint as the latest. 1 until an attempt has another one.
        counted_failures: Attempts that failed, except with an error of ``_UNCOUNTED``, and deaths
            except the first.
        deaths: Attempts that ended with their worker or its engine.
        resumed_tokens: Tokens that stood when the latest attempt began.
        deaths_without_progress: Attempts in a row that died before they emitted a token of their
            own.
        started: The start event of the latest attempt, if there is one.
        cancel_requested: Whether a cancellation is recorded.
        expiring: Whether a deadline, or the absence of its model, caused that cancellation.
        model_absent: Whether the absence of its model did.
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
    active_attempt: bool = False
    epoch: int = 1
    counted_failures: int = 0
    deaths: int = 0
    resumed_tokens: int = 0
    deaths_without_progress: int = 0
    device_failures: int = 0
    started: AttemptStarted | None = None
    cancel_requested: bool = False
    expiring: bool = False
    model_absent: bool = False
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


@singledispatch
def _apply(event: JobEvent, job: Job) -> Job:
    raise AssertionError(event, job)


@_apply.register
def _(event: EmbeddingRequested, job: Job) -> Job:
    del event  # the request has the texts
    return job


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
    epoch = epoch_after(job, event.fingerprint)
    # Deaths under another model do not count against this one.
    is_same = epoch == job.epoch
    return replace(
        job,
        status=JobStatus.RUNNING,
        attempt=event.attempt,
        active_attempt=True,
        epoch=epoch,
        counted_failures=counted_failures_now(job),
        deaths=job.deaths + job.active_attempt,
        deaths_without_progress=deaths_without_progress(job, event.resumed_tokens)
        if is_same
        else 0,
        device_failures=device_failures(job, event.resumed_tokens) if is_same else 0,
        resumed_tokens=event.resumed_tokens,
        started=event,
    )


def epoch_after(job: Job, fingerprint: str) -> int:
    """Return the epoch of a job once its next attempt has started under a fingerprint."""
    if job.started is None or job.started.fingerprint == fingerprint:
        return job.epoch
    return job.attempt + 1


def counted_failures_now(job: Job) -> int:
    """Return the counted failures; an attempt without an end has died, a first death is none."""
    return job.counted_failures + (job.active_attempt and job.deaths > 0)


def deaths_without_progress(job: Job, emitted_tokens: int) -> int:
    """Return how many attempts in a row died without a new token, with ``emitted_tokens`` emitted.

    A worker may be killed for reasons outside of any job. Workers that die again before the job
    emits one more token probably die of that job.
    """
    if not job.active_attempt:
        return job.deaths_without_progress
    return 0 if emitted_tokens > job.resumed_tokens else job.deaths_without_progress + 1


def device_failures(job: Job, emitted_tokens: int) -> int:
    """Return how many attempts in a row the GPU ended without a new token; as above."""
    return 0 if emitted_tokens > job.resumed_tokens else job.device_failures


@_apply.register
def _(event: AttemptFailed, job: Job) -> Job:
    has_died = event.error == EngineLost.code and event.attempt > 0
    is_counted = job.deaths > 0 if has_died else event.error not in _UNCOUNTED
    return replace(
        job,
        status=JobStatus.QUEUED,
        active_attempt=False,
        counted_failures=job.counted_failures + is_counted,
        deaths=job.deaths + has_died,
        # The worker recorded the failure, so it lives.
        deaths_without_progress=0,
        device_failures=job.device_failures + (event.error == DeviceFailed.code),
    )


@_apply.register
def _(event: JobCancelRequested, job: Job) -> Job:
    return replace(
        job,
        cancel_requested=True,
        expiring=event.reason in {DEADLINE, MODEL_ABSENT},
        model_absent=event.reason == MODEL_ABSENT,
    )


@_apply.register
def _(event: JobCancelled, job: Job) -> Job:
    ending = Finished(stop_reason=StopReason.CANCELLED, usage=event.usage)
    return replace(
        job, status=JobStatus.CANCELLED, active_attempt=False, ending=ending, output=event.output
    )


@_apply.register
def _(event: JobCompleted, job: Job) -> Job:
    ending = Finished(
        stop_reason=event.stop_reason, usage=event.usage, stop_sequence=event.stop_sequence
    )
    return replace(
        job, status=JobStatus.COMPLETED, active_attempt=False, ending=ending, output=event.output
    )


@_apply.register
def _(event: JobFailed, job: Job) -> Job:
    # A new request is answered by the present model.
    retryable = event.error == ModelChanged.code
    ending = Failed(error=event.error, message=event.message, retryable=retryable)
    return replace(job, status=JobStatus.FAILED, active_attempt=False, ending=ending)


@_apply.register
def _(event: JobExpired, job: Job) -> Job:
    ending = Failed(error="expired", message=why_expired(event), retryable=False)
    return replace(
        job, status=JobStatus.EXPIRED, active_attempt=False, ending=ending, output=event.output
    )


def why_expired(event: JobExpired) -> str:
    """Return the sentence that explains the end of an expired job."""
    if event.absent_model is not None:
        return (
            f"model {event.absent_model} was not loaded in time;"
            f" load it with: semantic models swap {event.absent_model}"
        )
    return f"the deadline {event.deadline} passed"


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
        active_attempt=False,
        counted_failures=0,
        deaths=0,
        resumed_tokens=0,
        deaths_without_progress=0,
        device_failures=0,
        cancel_requested=False,
        expiring=False,
        model_absent=False,
        ending=None,
        output=None,
    )
