"""Commands to a job; ``domain.job.decisions.decide`` turns them into events."""

from __future__ import annotations

from dataclasses import dataclass

from domain.chat.items import Failed
from domain.chat.request import ChatRequest
from domain.values import (
    ATTEMPTS_MAX,
    WORKER_DEATHS_MAX,
    AgentId,
    Digest,
    Owner,
    Priority,
    PromptEncoding,
    Sampling,
    StopReason,
    Timings,
    Usage,
    WorkerId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """Accept a request as a job.

    Attributes:
        request: What to generate; the seed is already drawn.
        protocol: The dialect, as in ``JobSubmitted``.
        correlation_id: The id that the caller finds in ``request-id``.
        priority: Its queue.
        agent: Its agent, if known.
        client: The caller's User-Agent.
        attempts_max: Attempts before the job fails for good.
        worker_deaths_max: Workers in a row that may die on it before it emits a token.
        idempotency: Digest of the caller's key; a second job of the same key is refused.
        asked: The digest of ``ChatRequest.asked``.
        deadline: RFC 3339 instant after which it must not start.
        finish_deadline: RFC 3339 instant after which it must not run.
        ordered: Whether it must start after its agent's earlier jobs.
        webhook: URL that receives the end of the job; ``refuse_literal`` has checked it.
        wire: The request in the form of its dialect, for protocols that return it with the answer.
        bound_model: Registered model that must answer it; ``None`` follows the loaded model.
        waits_for_model: Whether it waits for a model that is not loaded.
        trace: As in ``JobSubmitted``.
        trace_link: As in ``JobSubmitted``.
        owner: As in ``JobSubmitted``.
        cache_owner: As in ``JobSubmitted``.
        keyspace: Only requests with the same one repeat each other; empty if all clients share it.
    """

    request: ChatRequest
    protocol: str
    correlation_id: str
    priority: Priority = Priority.INTERACTIVE
    agent: AgentId | None = None
    client: str | None = None
    attempts_max: int = ATTEMPTS_MAX
    worker_deaths_max: int = WORKER_DEATHS_MAX
    idempotency: Digest | None = None
    asked: Digest | None = None
    deadline: str | None = None
    finish_deadline: str | None = None
    ordered: bool = True
    webhook: str | None = None
    wire: bytes | None = None
    bound_model: str | None = None
    waits_for_model: bool = False
    trace: str | None = None
    trace_link: str | None = None
    owner: Owner | None = None
    cache_owner: Owner | None = None
    keyspace: str = ""

    @property
    def answers_to(self) -> Owner | None:
        """Whose answers the prompt may echo; ``None`` for those to all clients."""
        return self.owner if self.keyspace else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempt:
    """Take the job for a worker; the attempt number follows from the state."""

    worker: WorkerId
    model: str
    fingerprint: str
    prompt_tokens: int
    cached_tokens: int
    cache_source: str
    first_item: int
    resumed_tokens: int
    sampling: Sampling
    prompt_hash: str | None = None
    thinking_limit: int | None = None
    known_tokens: int = 0
    encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteAttempt:
    """The attempt has the whole answer."""

    attempt: int
    stop_reason: StopReason
    stop_sequence: str | None
    usage: Usage
    output: Digest
    token_hash: str
    timings: Timings


@dataclass(frozen=True, slots=True, kw_only=True)
class FailAttempt:
    """The attempt ended without an answer; ``attempt`` is 0 if it could not even start."""

    attempt: int
    failure: Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCancel:
    """Request the end of the job."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmCancel:
    """The job has stopped, on request or at its deadline.

    ``attempt`` is 0 if none was running.
    """

    attempt: int
    usage: Usage
    output: Digest | None = None
    timings: Timings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attach:
    """Give a repeated request the answer of this job."""

    reason: str
    request_id: str | None = None
    trace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Run a job again that ended without an answer."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hide:
    """Hide the job from the routes of its dialect."""


#: Commands of a worker about an attempt.
AttemptCommand = StartAttempt | CompleteAttempt | FailAttempt | ConfirmCancel
JobCommand = RequestCancel | Attach | Retry | Hide | AttemptCommand
