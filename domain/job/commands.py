"""Commands to a job; ``domain.job.decisions.decide`` turns them into events."""

from __future__ import annotations

from dataclasses import dataclass

from domain.chat.items import Failed
from domain.values import (
    Digest,
    PromptEncoding,
    Sampling,
    StopReason,
    Timings,
    Usage,
    WorkerId,
)


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
