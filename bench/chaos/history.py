"""The recorded history of a run: what clients sent and received, and the log's events.

Plain values only, so that tests of ``bench.chaos.checker`` can construct a history.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """How a client sends its request and reads the answer."""

    MESSAGES = "messages"  # an Anthropic stream; the whole request is repeated when it breaks
    POLLED = "polled"  # a job whose state is polled until it has ended
    STREAMED = "streamed"  # a job whose stream is resumed after its last event
    CANCELLED = "cancelled"  # a job that is cancelled while it runs
    RESPONSES = "responses"  # a background response, resumed with ``starting_after``
    TOOLS = "tools"  # an Anthropic stream whose answer is a tool call
    BATCH = "batch"  # a Message Batch that is polled until it has ended
    PROBE = "probe"  # a job of one token; its end shows that the service has recovered


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSpec:
    """The parameters that determine an answer: equal requests must have the same answer.

    Attributes:
        calls_tool: Whether the answer must be a call of the one tool; its text is the arguments.
    """

    prompt: str
    max_tokens: int
    temperature: float
    seed: int
    calls_tool: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A stream item as a client received it; ``n`` is ``None`` for one without a number."""

    n: int | None
    attempt: int
    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One connection of a client.

    Attributes:
        job: The job id in the answer; the client may rely on it from then on.
        after: The client's last item number when it connected; -1 for none.
        items: The received items in order. An Anthropic stream's text has items without numbers.
        is_whole: Whether the stream came to its proper end, which is not an error.
    """

    job: str
    after: int = -1
    items: tuple[Item, ...] = ()
    is_whole: bool = False

    @property
    def text(self) -> str:
        """All text of this connection."""
        return "".join(item.text for item in self.items if item.kind == "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class LineResult:
    """The result of one line of a batch; ``line`` counts from 0."""

    line: int
    status: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookMessage:
    """One message as the receiver got it.

    Attributes:
        id: Its ``webhook-id``.
        subject: The job or batch.
        type: E.g. ``job.completed``.
        digest: SHA-256 of the body.
        is_signed: Whether the signature is that of the service's secret.
    """

    id: str
    subject: str
    type: str
    digest: str
    is_signed: bool


@dataclass(slots=True, kw_only=True)
class Operation:
    """One request of one client, with all its retries; the client adds to it until its end.

    Attributes:
        client: Its User-Agent, which the log stores with the job; unique for each operation.
        kind: How it was sent and read.
        request: Parameters of the request.
        keyed: Whether every sending carried the same idempotency key.
        sendings: How often the request itself was sent.
        accepted: The job of each answer that accepted it, in order.
        readings: The streams that were opened.
        statuses: The job's states that the client read, in order.
        cancel_confirmed: Whether a cancellation was answered with 200.
        answered: Whether the client has its answer, or knows that there is none.
        bad_reply: Text of a reply that no client should ever receive.
        lines: Requests of a batch.
        batch: The batch that the client followed to its end.
        results: The results that the client read, in order.
    """

    client: str
    kind: Kind
    request: RequestSpec
    keyed: bool
    sendings: int = 0
    accepted: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    statuses: tuple[str, ...] = ()
    cancel_confirmed: bool = False
    answered: bool = True
    bad_reply: str | None = None
    lines: tuple[RequestSpec, ...] = ()
    batch: str | None = None
    results: tuple[LineResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A job's final state in the service."""

    job: str
    status: str
    text: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The fields of a log event that the checker needs."""

    position: int
    stream: str
    version: int
    type: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that was recorded.

    Attributes:
        operations: Operations of all clients.
        outcomes: Every job's final state, by its id.
        events: The whole log.
        baseline: The answers before any fault, by request.
        chain: Errors of ``semantic log verify``; empty if the chain holds.
        messages: Every webhook message that was received, in order.
        swaps: The swaps of models that the service accepted.
    """

    operations: tuple[Operation, ...]
    outcomes: Mapping[str, Outcome]
    events: tuple[Event, ...]
    baseline: Mapping[RequestSpec, str]
    chain: str = ""
    messages: tuple[WebhookMessage, ...] = ()
    swaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was not kept.

    Attributes:
        promise: Short name of the promise.
        subject: The job, client or place in the log.
        what: Description of the violation.
    """

    promise: str
    subject: str
    what: str
