"""Accepts a request as a job: log first, queue second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Final

from domain.chat.request import ChatRequest, canonical_json, unattributed
from domain.errors import (
    IdempotencyKeyReused,
    IdempotencyKeyTaken,
    InvalidRequest,
    MemoryFull,
    Overloaded,
    QueueUnavailable,
    RateLimited,
    UniqueJobExists,
)
from domain.events.job import EmbeddingRequested, JobAttached, JobSubmitted
from domain.job.commit import commit, load_job
from domain.job.eta import EtaSource, retry_after_s
from domain.job.fair_scheduler import enqueue
from domain.job.listing import JobViews, metadata_of, tags_of
from domain.job.ports import JobQueue
from domain.job.state import first_status
from domain.log.ports import EventLog
from domain.log.record import Append, Draft
from domain.ports import IdSource
from domain.shares import require_one_more, share_of, shortage
from domain.values import Digest, JobId, JobStatus, Owner, Priority, StreamName, digest_of

#: Why a submission gets the job that is unique already; a reason of ``JobAttached``.
UNIQUE: Final = "unique"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """What makes a job the only one of its kind, and for how long after its acceptance.

    Attributes:
        by: Names of the facts that are compared: ``prompt`` (messages and tools), ``model``,
            ``agent_id``, ``tags``, ``metadata``.
    """

    by: tuple[str, ...]
    seconds: float

    def digest(self, submitted: JobSubmitted, request: ChatRequest, keyspace: str) -> Digest:
        """Return a digest that is equal for jobs of the same kind, period and keyspace."""
        facts: dict[str, object] = {
            "prompt": [*map(asdict, unattributed(request.messages)), *request.tools],
            "model": request.model,
            "agent_id": submitted.agent,
            "tags": tags_of(submitted.labels),
            "metadata": metadata_of(submitted.labels),
        }
        compared = {name: facts[name] for name in self.by}
        return digest_of(canonical_json([UNIQUE, keyspace, self.seconds, compared]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The job exists.

    Attributes:
        job_id: The job; an earlier one if the request is a repeat.
        queued: Whether the queue holds the job, or the job is held outside of it; if not, the
            reconciler enqueues it.
        attached: Why the request was attached to an earlier job, if it was.
        joined_trace: W3C ``traceparent`` of that job.
    """

    job_id: JobId
    queued: bool
    attached: str | None = None
    joined_trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmission:
    """Accepts requests as jobs; one per process.

    Attributes:
        log: Committed before anything else.
        queue: May be unavailable; the job is accepted all the same.
    """

    log: EventLog
    queue: JobQueue
    ids: IdSource

    def submit(
        self, new: NewJob, *, job_id: JobId, claim: Callable[[JobId], None] | None = None
    ) -> Accepted:
        """Record a job and enqueue it.

        Args:
            job_id: A fresh id, drawn by the caller so that it can subscribe to the items first.
            claim: Called once a fresh job is in the log, before it is enqueued. An error of it
                passes through, and the caller cancels the job.

        Returns:
            The new job, or the earlier one of the same idempotency key, or the unique one.

        Raises:
            ConcurrencyConflict: The other stream of ``NewJob.recorded_by`` has changed; nothing was
                accepted.
            LogUnavailable: Nothing was accepted.
            IdempotencyKeyReused: An earlier request with other contents has the key.
        """
        submitted, payloads = new.sealed()
        events = (submitted,) if new.embedding is None else (submitted, new.embedding)
        drafts = [
            Draft(event_id=self.ids.event_id(), event=event, correlation_id=new.correlation_id)
            for event in events
        ]
        try:
            self.log.append(
                StreamName(job_id),
                drafts,
                expected_version=0,
                payloads=payloads,
                also=None if new.recorded_by is None else new.recorded_by(job_id),
            )
        except UniqueJobExists as error:
            return self.attach(
                JobId(error.job_id),
                reason=UNIQUE,
                request_id=new.correlation_id,
                trace=submitted.trace,
            )
        except IdempotencyKeyTaken as error:
            earlier = JobId(error.job_id)
            before = load_job(earlier, log=self.log).job.submitted
            if before.asked != submitted.asked:
                raise IdempotencyKeyReused(earlier) from error
            return self.attach(
                earlier,
                reason="idempotency_key",
                request_id=new.correlation_id,
                trace=submitted.trace,
            )
        if claim is not None:
            claim(job_id)
        is_held = first_status(submitted) is JobStatus.HELD
        return Accepted(job_id=job_id, queued=is_held or self._enqueue(job_id, submitted))

    def attach(
        self, job_id: JobId, *, reason: str, request_id: str, trace: str | None = None
    ) -> Accepted:
        """Record that a repeated request gets the answer of an earlier job.

        The job is enqueued again, in case the queue lost it.

        Args:
            reason: As in ``JobAttached``.
            trace: W3C ``traceparent`` of that request.

        Raises:
            JobNotFound: There is no such job.
            LogUnavailable: Nothing was recorded.
        """
        attach = JobAttached(reason=reason, request_id=request_id, trace=trace)
        job = commit(job_id, attach, log=self.log, ids=self.ids)
        is_settled = job.status.is_terminal or job.status is JobStatus.HELD
        queued = is_settled or self._enqueue(job_id, job.submitted)
        return Accepted(
            job_id=job_id, queued=queued, attached=reason, joined_trace=job.submitted.trace
        )

    def _enqueue(self, job_id: JobId, submitted: JobSubmitted) -> bool:
        try:
            enqueue(self.queue, job_id, submitted)
        except QueueUnavailable:
            return False
        return True


def idempotency_digest(key: str, keyspace: str = "") -> Digest:
    """Return the digest that the log keeps of an idempotency key.

    Args:
        key: As the client wrote it.
        keyspace: As in ``NewJob``; equal keys of two keyspaces differ.
    """
    whose = f"{keyspace}\n".encode() if keyspace else b""
    return digest_of(b"idempotency-key\n" + whose + key.encode("utf-8", "surrogatepass"))


def is_repeat(new: JobSubmitted, views: JobViews, *, at: str) -> bool:
    """Return whether a submission gets an earlier job now, so that it needs no room."""
    if new.idempotency is not None and views.keyed(new.idempotency) is not None:
        return True
    return new.unique is not None and views.holder(new.unique, at=at) is not None


def line_length(
    counts: Mapping[str | None, int], model: str | None, has_own_line: Callable[[str], bool]
) -> int:
    """Return how many jobs wait beside a job that is bound to ``model``.

    Jobs of an absent model and of an embedding model form a line of their own: they hold no place
    of the others.
    """
    if model is not None and has_own_line(model):
        return counts.get(model, 0)
    return sum(count for bound, count in counts.items() if bound is None or not has_own_line(bound))


def require_room(
    priority: Priority,
    *,
    jobs_max: int,
    views: JobViews,
    eta: EtaSource,
    jobs: int = 1,
    memory_wait_s: float = 0.0,
    owner: Owner | None = None,
    length_of: Callable[[Mapping[str | None, int]], int] = lambda counts: sum(counts.values()),
) -> None:
    """Refuse new jobs, all or none, if their queue or the memory has no room for them.

    Callers that check at the same time may exceed the limit by their number.

    Args:
        memory_wait_s: They are refused while an earlier interactive job has waited for memory for
            so many seconds; 0: never.
        owner: The API key that has a share of their queue; ``None`` where none needs one.
        length_of: Returns how many of the waiting jobs, by their bound model, are in one line with
            them; see ``line_length``.

    Raises:
        InvalidRequest: ``jobs`` is more than may ever wait, or than the share can be.
        Overloaded: The queue is full; the message names the limit.
        MemoryFull: The memory for contexts is full.
        RateLimited: The key has its share of the queue.
    """
    if jobs > jobs_max:
        msg = f"{jobs} answers at once; the {priority.value} queue takes {jobs_max}"
        raise InvalidRequest(msg, field="n")
    waiting = length_of(views.waiting(priority))
    if waiting + jobs > jobs_max:
        limit = jobs_max - jobs + 1
        free_in_s = eta.room_in_s(priority, waiting=waiting, limit=limit)
        full = f"the {priority.value} queue is full: {jobs_max} jobs are waiting"
        if jobs > 1:
            full = (
                f"the {priority.value} queue has {waiting} of {jobs_max} jobs, no room for {jobs}"
            )
        raise Overloaded(full, retry_after_s=retry_after_s(free_in_s))
    _require_memory(priority, memory_wait_s, waiting, eta)
    if owner is not None:
        mine = length_of(views.waiting(priority, owner=owner))
        room_in_s = partial(eta.room_in_s, priority, waiting=waiting, limit=max(1, waiting))
        _require_share(f"{priority.value} queue", jobs_max, waiting, mine, jobs, room_in_s)


def _require_share(
    queue: str,
    jobs_max: int,
    held: int,
    mine: int,
    jobs: int,
    free_in_s: Callable[[], float | None],
) -> None:
    if jobs > (most := share_of(jobs_max)):
        msg = f"{jobs} answers at once; a key may have {most} jobs in the {queue}"
        raise InvalidRequest(msg, field="n")
    found = shortage(jobs_max, held=held, mine=mine, size=jobs)
    if found is not None:
        msg = f"this key may have {found.limit} of the {jobs_max} waiting jobs of the {queue}"
        raise RateLimited(msg, retry_after_s=retry_after_s(free_in_s()))


#: Jobs that may be held at once.
HELD_MAX: Final = 10_000


def require_hold(owner: Owner | None, views: JobViews) -> None:
    """Refuse a new held job if too many are held; held jobs take no place of a queue.

    Args:
        owner: As in ``NewJob.answers_to``.

    Raises:
        Overloaded: Naming the limit.
        RateLimited: Naming the share of the key.
    """
    require_one_more(
        HELD_MAX,
        held=views.count_held(),
        mine=None if owner is None else views.count_held(owner=owner),
        what="held jobs",
        hint="cancel some",
    )


def _require_memory(priority: Priority, wait_max_s: float, waiting: int, eta: EtaSource) -> None:
    """Refuse a job while an earlier one has waited for memory for too long."""
    full_s = eta.full_s() if wait_max_s else 0.0
    if not 0 < wait_max_s <= full_s:
        return
    free_in_s = eta.room_in_s(priority, waiting=waiting, limit=max(1, waiting))
    raise MemoryFull(full_s, retry_after_s=retry_after_s(free_in_s))


#: Returns the append to another stream that goes with a job.
RecordedBy = Callable[[JobId], Append]

#: Stands for the digest of a request until ``NewJob.sealed``: the request may still change.
UNSEALED: Final = Digest("")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A job that is not recorded yet.

    Attributes:
        submitted: Its event; ``sealed`` sets what follows from the texts.
        request: What to generate; the seed is already drawn.
        correlation_id: The id that the caller finds in ``request-id``.
        client: The caller's User-Agent.
        wire: The request in the form of its dialect, for protocols that return it with the answer.
        warning: What of the request has no effect; ``None`` if all of it has.
        keyspace: Only requests with the same one repeat each other; empty if all clients share it.
        recorded_by: Returns what is appended to another stream with the job, or neither is; not
            where the request gets an earlier job.
    """

    submitted: JobSubmitted
    request: ChatRequest
    correlation_id: str
    client: str | None = None
    wire: bytes | None = None
    warning: str | None = None
    keyspace: str = ""
    recorded_by: RecordedBy | None = None

    @property
    def answers_to(self) -> Owner | None:
        """Whose answers the prompt may echo; ``None`` for those to all clients."""
        return self.submitted.owner if self.keyspace else None

    @property
    def embedding(self) -> EmbeddingRequested | None:
        """The event that follows if the job computes vectors."""
        inputs = self.request.embedding
        if inputs is None:
            return None
        return EmbeddingRequested(texts=len(inputs.texts), dimensions=inputs.dimensions)

    def sealed(self) -> tuple[JobSubmitted, dict[Digest, bytes]]:
        """Return the event and the texts that it names, by digest."""
        payload = self.request.to_bytes()
        client, warning = (
            None if text is None else text_bytes(text) for text in (self.client, self.warning)
        )
        texts = (payload, self.wire, client, warning)
        submitted = replace(
            self.submitted,
            model=self.request.model,
            request=digest_of(payload),
            sampling=self.request.sampling,
            max_tokens=self.request.max_tokens,
            client_name=None if client is None else digest_of(client),
            wire=None if self.wire is None else digest_of(self.wire),
            warning=None if warning is None else digest_of(warning),
        )
        return submitted, {digest_of(text): text for text in texts if text is not None}


def text_bytes(text: str) -> bytes:
    """Return a short text of a client as the payload that keeps it."""
    return text.encode("utf-8", "surrogatepass")


def asked_of(command: NewJob, *, seeded: bool) -> Digest:
    """Return a digest that is equal for requests with the same question and answer format."""
    agent = command.submitted.agent
    asked = command.request.asked(protocol=command.submitted.protocol, agent=agent, seeded=seeded)
    if command.submitted.webhook is not None:
        # A request with a webhook must not join a job that notifies another receiver, or none.
        asked = digest_of(f"{asked}\n{command.submitted.webhook}".encode())
    if command.wire is not None:
        # The answer shows parts of its request, so these must be equal too.
        asked = digest_of(f"{asked}\n".encode() + command.wire)
    if command.submitted.after:
        # Its prompt may state the same about other jobs.
        asked = digest_of(f"{asked}\nafter {command.submitted.after}".encode())
    if command.keyspace:
        asked = digest_of(f"{asked}\nkey {command.keyspace}".encode())
    return asked


def asking(command: NewJob, asked: Digest) -> NewJob:
    """Return the job of a request with the digest by which its repeats find it."""
    return replace(command, submitted=replace(command.submitted, asked=asked))
