"""Events of batches, files and webhooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from domain.values import (
    Digest,
    Owner,
    Usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCreated:
    """A file exists: uploaded, or derived from the answers of a batch.

    Attributes:
        purpose: As OpenAI names it: ``batch``, ``batch_output``, ….
        bytes: Its length.
        content: Digest of its manifest (``domain.batch.jsonl``), which has its name; ``None`` for
            output of a batch.
        expires_at: RFC 3339 instant after which it is not shown, if there is one.
        batch: The batch that it is derived from.
        part: ``output`` or ``error``: which lines of that batch.
        owner: Name of the API key of the request, or that of the batch; ``None`` without keys.
    """

    purpose: str
    bytes: int
    content: Digest | None = None
    expires_at: str | None = None
    batch: str | None = None
    part: str | None = None
    owner: Owner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDeleted:
    """The owner deleted it; content that no batch needs is erased soon after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSubmitted:
    """Many requests were accepted at once; each line becomes a job.

    Attributes:
        protocol: The dialect of every line: ``anthropic``, ``openai-chat``,
            ``openai-completions`` or ``openai-responses``.
        endpoint: The path that each line would be sent to alone.
        content: Digest of the lines' manifest (see ``domain.batch.jsonl``).
        expires_at: RFC 3339 instant after which no line may run.
        client_name: Digest of the text that names the client, for the operator.
        input_file: The file that the lines came in.
        metadata: Key-value pairs of the owner.
        output_kept_s: Seconds for which the result files are kept, if the owner set it.
        webhook: URL that receives the end of the batch, if the owner named one.
        trace: W3C ``traceparent`` of the span of its request.
        owner: Name of the API key of the request; ``None`` without keys.
        cache_owner: As in ``JobSubmitted``, for the jobs of the lines.
        start_after: RFC 3339 instant before which no line becomes a job, if there is one.
    """

    protocol: str
    endpoint: str
    content: Digest
    lines: int
    expires_at: str
    client_name: Digest | None = None
    input_file: str | None = None
    metadata: Mapping[str, str] | None = None
    output_kept_s: int | None = None
    webhook: str | None = None
    trace: str | None = None
    owner: Owner | None = None
    cache_owner: Owner | None = None
    start_after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStarted:
    """The lines were checked as a whole; from here on they become jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFailed:
    """The lines are no valid batch; ``errors`` is the digest of the faults, as JSON."""

    errors: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCancelRequested:
    """The owner requested its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFinalizing:
    """Every line has ended; the result files are being measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnded:
    """Every line has its result; the counts add up to the number of lines.

    Attributes:
        succeeded: Lines with an answer.
        errored: Lines that failed, or that were no request.
        canceled: Lines that were cancelled, most of them before they became jobs.
        expired: Lines that the end of the window overtook.
        usage: Tokens of all lines together.
    """

    succeeded: int = 0
    errored: int = 0
    canceled: int = 0
    expired: int = 0
    usage: Usage = Usage()

    @property
    def lines(self) -> int:
        """Number of lines."""
        return self.succeeded + self.errored + self.canceled + self.expired


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDeleted:
    """The owner deleted it; texts that no other owner needs are erased soon after."""


FileEvent = FileCreated | FileDeleted


BatchEvent = (
    BatchSubmitted
    | BatchStarted
    | BatchFailed
    | BatchCancelRequested
    | BatchFinalizing
    | BatchEnded
    | BatchDeleted
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookGivenUp:
    """All tries of the schedule failed, or the receiver refused the webhook for good.

    Attributes:
        subject: The job or the batch that ended.
        event: Type of the message, for example ``job.completed``.
        status: HTTP status of the last answer, if there was one.
        error: Error of the last try.
    """

    subject: str
    event: str
    url: str
    attempts: int
    error: str
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRetried:
    """The webhook was put back to be sent again."""

    reason: str


WebhookEvent = WebhookGivenUp | WebhookRetried
