"""The jobs projection: one row per job, folded from its events. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import singledispatch
from typing import Literal

from domain.chat.embedding import EMBEDDINGS_PROTOCOL
from domain.events.event import Event
from domain.events.job import (
    AttemptFailed,
    AttemptStarted,
    JobCancelled,
    JobCancelRequested,
    JobCompleted,
    JobExpired,
    JobFailed,
    JobRetried,
    JobSubmitted,
)
from domain.job.state import why_expired
from domain.log.codec import decode_recorded
from domain.log.record import RecordedEvent
from domain.values import JobId, JobStatus, Owner, Timings, Usage

_JOB_PREFIX = "job-"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One row of the list of jobs.

    Attributes:
        protocol: The dialect of its request.
        model: The model name of the caller.
        priority: Its queue.
        correlation_id: Id of the request that started it.
        created_at: RFC 3339 instant of acceptance.
        started_at: RFC 3339 instant of the first attempt.
        finished_at: RFC 3339 instant of the terminal event.
        attempt: Number of the latest attempt, or the one that a retry skipped.
        cancel_requested: Whether a cancellation is recorded.
        stop_reason: Why the generation ended.
        stop_sequence: The stop text that ended it.
        usage: Token counts.
        timings: Durations of its phases; 0 if unknown.
        request: Digest of the canonical request.
        idempotency: Digest of the idempotency key.
        asked: Digest that is equal for equal requests.
        deadline: Instant after which it must not start.
        finish_deadline: Instant after which it must not run.
        output: Digest of the output payload.
        bound_model: Registered model that must answer it; ``None`` follows the loaded model.
        waits_for_model: Whether it waits for a model that is not loaded.
        answered_by: Id of the model of the latest attempt.
        fingerprint: Fingerprint of that model.
        epoch: Epoch of the latest attempt, as in ``Job.epoch``.
        error: Code of the failure.
        error_message: Message of the failure.
        trace: W3C ``traceparent`` of the span of its request.
        owner: Name of the API key of its request.
        position: Position of the latest event folded in.
    """

    id: JobId
    status: JobStatus
    protocol: str
    model: str
    priority: str
    agent: str | None
    correlation_id: str
    created_at: str
    request: str
    idempotency: str | None = None
    asked: str | None = None
    deadline: str | None = None
    finish_deadline: str | None = None
    started_at: str | None = None
    finished_at: str | None = None
    attempt: int = 0
    cancel_requested: bool = False
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage = Usage()
    timings: Timings = Timings()
    output: str | None = None
    bound_model: str | None = None
    waits_for_model: bool = False
    answered_by: str | None = None
    fingerprint: str | None = None
    epoch: int = 1
    error: str | None = None
    error_message: str | None = None
    trace: str | None = None
    owner: Owner | None = None
    position: int = 0


def job_kind(view: JobView) -> Literal["generation", "embedding"]:
    """Return what a job computes."""
    return "embedding" if view.protocol == EMBEDDINGS_PROTOCOL else "generation"


def is_job_event(recorded: RecordedEvent) -> bool:
    """Whether the event belongs to a job."""
    return recorded.stream.startswith(_JOB_PREFIX)


def job_id_of(recorded: RecordedEvent) -> JobId:
    """Return the job that a job event belongs to; the stream name is the job id."""
    return JobId(recorded.stream)


def project_job(view: JobView | None, recorded: RecordedEvent) -> JobView:
    """Return the row after ``recorded``.

    Args:
        view: The row before; ``None`` for the first event of the job.
        recorded: The next event of that job's stream.
    """
    event = decode_recorded(recorded)
    if isinstance(event, JobSubmitted):
        view = JobView(
            id=job_id_of(recorded),
            status=JobStatus.QUEUED,
            protocol=event.protocol,
            model=event.model,
            priority=event.priority,
            agent=event.agent,
            correlation_id=recorded.correlation_id,
            created_at=recorded.recorded_at,
            request=event.request,
            idempotency=event.idempotency,
            asked=event.asked,
            deadline=event.deadline,
            finish_deadline=event.finish_deadline,
            bound_model=event.bound_model,
            waits_for_model=event.waits_for_model,
            trace=event.trace,
            owner=event.owner,
        )
    assert view is not None, f"{recorded.stream} does not begin with JobSubmitted"
    return replace(_apply(event, view, recorded.recorded_at), position=recorded.position)


@singledispatch
def _apply(event: Event, view: JobView, at: str) -> JobView:
    del event, at
    return view


@_apply.register
def _(event: AttemptStarted, view: JobView, at: str) -> JobView:
    is_same = view.fingerprint in {None, event.fingerprint}
    return replace(
        view,
        status=JobStatus.RUNNING,
        attempt=event.attempt,
        answered_by=event.model,
        fingerprint=event.fingerprint,
        epoch=view.epoch if is_same else event.attempt,
        started_at=view.started_at or at,
        usage=Usage(prompt_tokens=event.prompt_tokens, cached_tokens=event.cached_tokens),
    )


@_apply.register
def _(event: AttemptFailed, view: JobView, at: str) -> JobView:
    del at
    return replace(view, status=JobStatus.QUEUED, error=event.error, error_message=event.message)


@_apply.register
def _(event: JobCancelRequested, view: JobView, at: str) -> JobView:
    del event, at
    return replace(view, cancel_requested=True)


@_apply.register
def _(event: JobCancelled, view: JobView, at: str) -> JobView:
    return replace(
        view,
        status=JobStatus.CANCELLED,
        finished_at=at,
        stop_reason="cancelled",
        usage=event.usage,
        timings=event.timings or view.timings,
        output=event.output,
        error=None,
        error_message=None,
    )


@_apply.register
def _(event: JobCompleted, view: JobView, at: str) -> JobView:
    return replace(
        view,
        status=JobStatus.COMPLETED,
        finished_at=at,
        stop_reason=event.stop_reason,
        stop_sequence=event.stop_sequence,
        usage=event.usage,
        timings=event.timings,
        output=event.output,
        error=None,
        error_message=None,
    )


@_apply.register
def _(event: JobFailed, view: JobView, at: str) -> JobView:
    return replace(
        view,
        status=JobStatus.FAILED,
        finished_at=at,
        error=event.error,
        error_message=event.message,
    )


@_apply.register
def _(event: JobExpired, view: JobView, at: str) -> JobView:
    return replace(
        view,
        status=JobStatus.EXPIRED,
        finished_at=at,
        usage=event.usage,
        timings=event.timings or view.timings,
        output=event.output,
        error="expired",
        error_message=why_expired(event),
    )


@_apply.register
def _(event: JobRetried, view: JobView, at: str) -> JobView:
    del event, at
    return replace(
        view,
        status=JobStatus.QUEUED,
        attempt=view.attempt + 1,
        finished_at=None,
        timings=Timings(),
        cancel_requested=False,
        deadline=None,
        finish_deadline=None,
        stop_reason=None,
        output=None,
        error=None,
        error_message=None,
    )
