"""A job: the record that decisions, lists and rows share, folded from its events.

    held ────JobReleased─────> queued
    queued ──AttemptStarted──> running ──JobCompleted──> completed
      ^                          │ └─────JobFailed─────> failed
      └───────AttemptFailed──────┘
    held ────JobFailed───────> failed
    held | queued | running ──JobCancelled──> cancelled
    held | queued | running ──JobExpired────> expired
    failed | cancelled | expired ──JobRetried──> queued

``evolve`` returns the record after an event, and ``domain.job.decisions.decide`` the events of a
proposed one. Both are pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from domain.chat.embedding import EMBEDDINGS_PROTOCOL
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
    JobRelabelled,
    JobReleased,
    JobRetried,
    JobSubmitted,
)
from domain.log.codec import ERASED_TEXT, decode_recorded
from domain.log.record import RecordedEvent
from domain.values import Digest, JobId, JobStatus, StopReason, Timings, Usage

_JOB_PREFIX = "job-"

#: Reason of a ``JobCancelRequested`` for a passed deadline: the job then expires.
DEADLINE = "deadline"
#: Reason of a ``JobCancelRequested`` for a model that was not loaded for too long.
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
    """One job; instants are RFC 3339.

    Attributes:
        submitted: The acceptance; a retry removes its instants.
        correlation_id: Id of the request that started it.
        queued_at: Instant at which it left its hold; ``None`` for a job that was never held.
        accepted_position: Position of the acceptance in the log.
        position: Position of the latest event folded in.
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
        started_at: Instant of the first attempt.
        finished_at: Instant of the terminal event.
        expiring: Whether a deadline, or the absence of its model, caused that cancellation.
        model_absent: Whether the absence of its model did.
        attached: Recorded repeats that got this answer.
        hidden: Whether the caller deleted the answer.
        usage: Token counts; those expected of the latest attempt while it runs.
        timings: Durations of its phases; 0 if unknown.
        error: Code of the failure of the job, or of its latest attempt.
        output: Digest of the stored answer; partial if the job was stopped.
    """

    id: JobId
    submitted: JobSubmitted
    correlation_id: str = ""
    created_at: str = ""
    queued_at: str | None = None
    accepted_position: int = 0
    position: int = 0
    version: int = 1
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
    started_at: str | None = None
    finished_at: str | None = None
    cancel_requested: bool = False
    expiring: bool = False
    model_absent: bool = False
    attached: int = 0
    hidden: bool = False
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: Usage = Usage()
    timings: Timings = Timings()
    error: str | None = None
    error_message: str | None = None
    output: Digest | None = None

    @property
    def kind(self) -> Literal["generation", "embedding"]:
        """What it computes."""
        return "embedding" if self.submitted.protocol == EMBEDDINGS_PROTOCOL else "generation"

    @property
    def has_begun(self) -> bool:
        """Whether an attempt began since the user's latest retry, which counts as an attempt."""
        return self.started is not None and self.started.attempt == self.attempt

    @property
    def answered_by(self) -> str | None:
        """Id of the model of the latest attempt."""
        return None if self.started is None else self.started.model

    @property
    def own_usage(self) -> Usage:
        """Token counts, without those that a waiting or failed job's last attempt expected."""
        has_usage = self.status not in {JobStatus.QUEUED, JobStatus.FAILED}
        return self.usage if has_usage else Usage()

    @property
    def unique(self) -> Digest | None:
        """What no other job may be until ``unique_until``; a job without an answer leaves it."""
        is_over = self.status.is_terminal and self.status is not JobStatus.COMPLETED
        return None if is_over else self.submitted.unique

    @property
    def is_rejected(self) -> bool:
        """Whether it may not start any more: its time was over before its first attempt."""
        return self.expiring and not self.attempt

    @property
    def due_at(self) -> str | None:
        """Instant at which an open job without a cancellation expires, if it ever does."""
        if self.status.is_terminal or self.cancel_requested:
            return None
        start, finish = self.submitted.deadline, self.submitted.finish_deadline
        instants = [finish, None if self.attempt else start]
        return min((instant for instant in instants if instant is not None), default=None)

    @property
    def model_wanted_since(self) -> str | None:
        """Since when an open job without a cancellation wants the model that it is bound to.

        Empty where it does not wait for that model to be loaded, or has begun under it.
        """
        asked = self.submitted
        if self.status.is_terminal or self.cancel_requested or asked.bound_model is None:
            return None
        if self.status is JobStatus.HELD:
            return None
        is_waiting = asked.waits_for_model and self.status is JobStatus.QUEUED
        return self.waiting_since if is_waiting else ""

    @property
    def waiting_since(self) -> str:
        """Since when it waits in its queue, if it has not begun."""
        return self.queued_at or self.created_at

    @property
    def held_until(self) -> str | None:
        """Instant from which a held job is looked at, empty for at once; ``None`` if not held.

        A cancelled one is looked at too: its process may have died before it ended the job.
        """
        if self.status is not JobStatus.HELD:
            return None
        return "" if self.cancel_requested else self.submitted.start_after or ""

    @property
    def awaits(self) -> str | None:
        """The last of the jobs that a held job waits for; it is not due before this one ends."""
        if self.status is not JobStatus.HELD or self.cancel_requested or not self.submitted.after:
            return None
        return self.submitted.after[-1].job

    @property
    def ending(self) -> Finished | Failed | None:
        """The terminal item of its stream, once it has ended."""
        match self.status:
            case JobStatus.COMPLETED | JobStatus.CANCELLED:
                assert self.stop_reason is not None
                return Finished(
                    stop_reason=self.stop_reason,
                    usage=self.usage,
                    stop_sequence=self.stop_sequence,
                    at=self.finished_at,
                )
            case JobStatus.FAILED | JobStatus.EXPIRED:
                # After a change of the model a new request is answered by the present one.
                retryable = self.error == ModelChanged.code
                message = self.error_message or ""
                return Failed(error=self.error or "", message=message, retryable=retryable)
            case _:
                return None


def is_job_event(recorded: RecordedEvent) -> bool:
    """Whether the event belongs to a job."""
    return recorded.stream.startswith(_JOB_PREFIX)


def job_id_of(recorded: RecordedEvent) -> JobId:
    """Return the job that a job event belongs to; the stream name is the job id."""
    return JobId(recorded.stream)


def first_status(submitted: JobSubmitted) -> JobStatus:
    """Return the status of a job with its acceptance."""
    is_held = submitted.start_after is not None or submitted.after
    return JobStatus.HELD if is_held else JobStatus.QUEUED


def request_of(events: Sequence[object]) -> Digest:
    """Return the digest of the request that a job with these events runs."""
    found = [
        event.request
        for event in events
        if isinstance(event, JobSubmitted | JobReleased) and event.request is not None
    ]
    return found[-1]


def fold(job_id: JobId, events: Iterable[JobEvent]) -> Job:
    """Return the job after ``events``, the first of which is its acceptance."""
    first, *rest = events
    assert isinstance(first, JobSubmitted), f"{job_id} does not begin with JobSubmitted"
    job = Job(id=job_id, submitted=first, status=first_status(first))
    for event in rest:
        job = evolve(job, event)
    return job


def fold_recorded(job: Job | None, recorded: RecordedEvent) -> Job:
    """Return the job after the next event of its stream.

    Args:
        job: The job before; ``None`` for the first event. A first event that is folded again, as
            after a lost checkpoint of the projections, begins anew.
        recorded: With its texts.
    """
    event = decode_recorded(recorded)
    if isinstance(event, JobSubmitted):
        return Job(
            id=job_id_of(recorded),
            submitted=event,
            correlation_id=recorded.correlation_id,
            created_at=recorded.recorded_at,
            status=first_status(event),
            accepted_position=recorded.position,
            position=recorded.position,
        )
    assert job is not None, f"{recorded.stream} lacks its JobSubmitted"
    assert isinstance(event, JobEvent)
    return evolve(job, event, recorded.recorded_at, position=recorded.position)


def evolve(job: Job, event: JobEvent, at: str = "", *, position: int = 0) -> Job:
    """Return ``job`` after ``event``.

    Args:
        at: The instant of its record; may be empty where only the state is wanted.
        position: The same.
    """
    return replace(_apply(event, job, at), version=job.version + 1, position=position)


def without_text(job: Job, text: str) -> Job:
    """Return a job without its copies of a text of ``domain.log.codec.TEXT_FIELDS``."""
    return _erased(job, [found == text for found in _texts(job)])


def with_erased_texts(job: Job, other: Job) -> Job:
    """Return a job without those of its texts that are erased from ``other``."""
    return _erased(job, [found == ERASED_TEXT for found in _texts(other)])


def _texts(job: Job) -> tuple[str | None, ...]:
    return (job.submitted.model, job.error_message, job.stop_sequence)


def _erased(job: Job, erased: Sequence[bool]) -> Job:
    model, message, stop = (
        ERASED_TEXT if is_gone else text for text, is_gone in zip(_texts(job), erased, strict=True)
    )
    return replace(
        job,
        submitted=replace(job.submitted, model=model or ""),
        error_message=message,
        stop_sequence=stop,
    )


def _apply(event: JobEvent, job: Job, at: str) -> Job:
    match event:
        case AttemptStarted():
            return _started(event, job, at)
        case AttemptFailed():
            return _attempt_failed(event, job)
        case JobCancelled() | JobCompleted() | JobFailed() | JobExpired():
            return _ended(event, replace(job, active_attempt=False, finished_at=at))
        case JobRetried():
            return _retried(job)
        case JobReleased():
            request = event.request or job.submitted.request
            submitted = replace(job.submitted, request=request)
            return replace(job, submitted=submitted, status=JobStatus.QUEUED, queued_at=at)
        case _:
            return _noted(event, job)


def _noted(event: JobEvent, job: Job) -> Job:
    """Return a job after an event that does not change its status."""
    match event:
        case JobAttached():
            return replace(job, attached=job.attached + 1)
        case JobHidden():
            return replace(job, hidden=True)
        case JobRelabelled():
            return replace(job, submitted=replace(job.submitted, wire=event.wire))
        case JobCancelRequested(reason=reason):
            absent = reason == MODEL_ABSENT
            is_late = absent or reason == DEADLINE
            return replace(job, cancel_requested=True, expiring=is_late, model_absent=absent)
        case _:
            assert isinstance(event, EmbeddingRequested)
            return job  # the request has the texts


def _started(event: AttemptStarted, job: Job, at: str) -> Job:
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
        started_at=job.started_at or at,
        usage=Usage(prompt_tokens=event.prompt_tokens, cached_tokens=event.cached_tokens),
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
    """Return how many attempts in a row the GPU ended without a new token."""
    return 0 if emitted_tokens > job.resumed_tokens else job.device_failures


def _attempt_failed(event: AttemptFailed, job: Job) -> Job:
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
        error=event.error,
        error_message=event.message,
    )


def _ended(event: JobCancelled | JobCompleted | JobFailed | JobExpired, job: Job) -> Job:
    if isinstance(event, JobFailed):
        status, message = JobStatus.FAILED, event.message
        return replace(job, status=status, error=event.error, error_message=message)
    job = replace(
        job,
        usage=event.usage,
        timings=event.timings or job.timings,
        output=event.output,
        error=None,
        error_message=None,
    )
    match event:
        case JobCompleted(stop_reason=reason, stop_sequence=text):
            status = JobStatus.COMPLETED
            return replace(job, status=status, stop_reason=reason, stop_sequence=text)
        case JobCancelled():
            return replace(job, status=JobStatus.CANCELLED, stop_reason=StopReason.CANCELLED)
        case JobExpired():
            status, message = JobStatus.EXPIRED, why_expired(event)
            return replace(job, status=status, error="expired", error_message=message)


def why_expired(event: JobExpired) -> str:
    """Return the sentence that explains the end of an expired job."""
    if event.absent_model is not None:
        return (
            f"model {event.absent_model} was not loaded in time;"
            f" load it with: semantic models swap {event.absent_model}"
        )
    return f"the deadline {event.deadline} passed"


def _retried(job: Job) -> Job:
    # A passed deadline would expire the retry at once.
    timeless = replace(job.submitted, deadline=None, finish_deadline=None, start_after=None)
    return replace(
        job,
        submitted=timeless,
        # The answers of the jobs before it may not stand in its prompt yet.
        status=JobStatus.HELD
        if job.submitted.after and job.queued_at is None
        else JobStatus.QUEUED,
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
        finished_at=None,
        timings=Timings(),
        stop_reason=None,
        output=None,
        error=None,
        error_message=None,
    )
