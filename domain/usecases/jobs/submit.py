"""Accept a request: log first, queue second."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from domain.errors import (
    IdempotencyKeyReused,
    IdempotencyKeyTaken,
    InvalidRequest,
    Overloaded,
    QueueUnavailable,
)
from domain.events.job import JobSubmitted
from domain.job.commands import Attach, CreateJob, SubmitJob
from domain.job.eta import EtaSource, retry_after_s
from domain.job.listing import JobViews
from domain.job.ports import JobQueue
from domain.job.state import Job, decide
from domain.log.ports import EventLog
from domain.log.record import Draft
from domain.ports import IdSource
from domain.usecases.jobs.commit import commit, load_job
from domain.values import Digest, JobId, Priority, StreamName, digest_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The job exists.

    Attributes:
        job_id: The job; an earlier one if the request was a repeat.
        queued: False if the broker was away: the reconciler will queue it.
        attached: Why the request joined an earlier job, if it did.
    """

    job_id: JobId
    queued: bool
    attached: str | None = None


def submit(
    command: SubmitJob,
    *,
    job_id: JobId,
    log: EventLog,
    queue: JobQueue,
    ids: IdSource,
    claim: Callable[[JobId], None] | None = None,
) -> Accepted:
    """Record a job and hint to the workers that it wants to run.

    Args:
        command: What to accept.
        job_id: A fresh id, drawn by the caller so that it can follow the stream before it begins.
        log: Committed before anything else.
        queue: May be away; the job is accepted all the same.
        ids: Names for the event.
        claim: Called once a fresh job is in the log, before a worker hears of it; what it raises
            is raised, and the job is the caller's to cancel.

    Returns:
        The new job, or the one that was accepted before under the same idempotency key.

    Raises:
        LogUnavailable: Nothing was accepted.
        IdempotencyKeyReused: The key came before with another request.
    """
    payload, wire = command.request.to_bytes(), command.wire
    payloads = {digest_of(text): text for text in (payload, wire) if text is not None}
    submitted = _facts(command, digest_of(payload))
    (event,) = decide(Job(id=job_id), CreateJob(submitted=submitted))
    draft = Draft(event_id=ids.event_id(), event=event, correlation_id=command.correlation_id)
    try:
        log.append(StreamName(job_id), [draft], expected_version=0, payloads=payloads)
    except IdempotencyKeyTaken as error:
        earlier = JobId(error.job_id)
        before = load_job(earlier, log=log).job.submitted
        if before is None or before.asked != submitted.asked:
            raise IdempotencyKeyReused(earlier) from error
        return join(
            earlier,
            reason="idempotency_key",
            request_id=command.correlation_id,
            log=log,
            queue=queue,
            ids=ids,
        )
    if claim is not None:
        claim(job_id)
    return Accepted(job_id=job_id, queued=_enqueue(job_id, submitted, queue))


def join(
    job_id: JobId, *, reason: str, request_id: str, log: EventLog, queue: JobQueue, ids: IdSource
) -> Accepted:
    """Record that a repeated request has the answer of an earlier job.

    Args:
        job_id: The earlier job.
        reason: As in ``JobAttached``.
        request_id: The repeated request.
        log: Where the job stands.
        queue: Hinted to again, in case the first hint was lost.
        ids: Names for the event.

    Raises:
        JobNotFound: There is no such job.
        LogUnavailable: Nothing was recorded.
    """
    job = commit(job_id, Attach(reason=reason, request_id=request_id), log=log, ids=ids)
    assert job.submitted is not None
    queued = job.status.is_terminal or _enqueue(job_id, job.submitted, queue)
    return Accepted(job_id=job_id, queued=queued, attached=reason)


def idempotency_digest(key: str) -> Digest:
    """Return what the log keeps of a caller's idempotency key."""
    return digest_of(b"idempotency-key\n" + key.encode("utf-8", "surrogatepass"))


def require_room(
    priority: Priority, *, jobs_max: int, views: JobViews, outlook: EtaSource, jobs: int = 1
) -> None:
    """Refuse jobs where too many of their queue wait already: all of them, or none.

    Callers that check at the same time may overshoot by their number.

    Args:
        priority: The queue.
        jobs_max: Most jobs that may wait in it.
        views: Counts them.
        outlook: Says when a place is likely to be free.
        jobs: How many there are.

    Raises:
        InvalidRequest: There are more than may ever wait.
        Overloaded: Naming the limit.
    """
    if jobs > jobs_max:
        msg = f"{jobs} answers at once; the {priority.value} queue takes {jobs_max}"
        raise InvalidRequest(msg, field="n")
    waiting = views.waiting(priority)
    if waiting + jobs > jobs_max:
        limit = jobs_max - jobs + 1
        free_in_s = outlook.room_in_s(priority, waiting=waiting, limit=limit)
        full = f"the {priority.value} queue is full: {jobs_max} jobs are waiting"
        if jobs > 1:
            full = (
                f"the {priority.value} queue has {waiting} of {jobs_max} jobs, no room for {jobs}"
            )
        raise Overloaded(full, retry_after_s=retry_after_s(free_in_s))


def _facts(command: SubmitJob, request: Digest) -> JobSubmitted:
    return JobSubmitted(
        protocol=command.protocol,
        model=command.request.model,
        request=request,
        sampling=command.request.sampling,
        max_tokens=command.request.max_tokens,
        priority=command.priority,
        attempts_max=command.attempts_max,
        agent=command.agent,
        client=command.client,
        idempotency=command.idempotency,
        deadline=command.deadline,
        finish_deadline=command.finish_deadline,
        asked=command.asked,
        ordered=command.ordered,
        worker_deaths_max=command.worker_deaths_max,
        webhook=command.webhook,
        wire=None if command.wire is None else digest_of(command.wire),
    )


def _enqueue(job_id: JobId, submitted: JobSubmitted, queue: JobQueue) -> bool:
    try:
        queue.enqueue(job_id, submitted.priority, agent=submitted.agent)
    except QueueUnavailable:
        return False
    return True
