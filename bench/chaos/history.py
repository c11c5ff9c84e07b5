"""What a run of chaos recorded: what clients sent and saw, and what the log says of it.

Plain values: the judge (``bench.chaos.checker``) needs nothing else, so a history can be made up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """How a client asks."""

    MESSAGES = "messages"  # an Anthropic stream, asked again whole when it breaks
    POLLED = "polled"  # a job whose state is asked for until it has ended
    STREAMED = "streamed"  # a job whose stream is taken up again after its last event
    CANCELLED = "cancelled"  # a job that is cancelled in the middle
    PROBE = "probe"  # a job of one token: the service works again when it has ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What decides an answer: two requests with equal values must have the same one."""

    prompt: str
    max_tokens: int
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A stream item as a client saw it; ``n`` is ``None`` for one without a number."""

    n: int | None
    attempt: int
    kind: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One connection of a client.

    Attributes:
        job: The job that the answer named; the client may rely on it from then on.
        after: The last item number that the client had when it asked; -1 for none.
        items: What came, in order. Of an Anthropic stream: its text as items without numbers.
        is_whole: The stream came to its proper end, which is not an error.
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
class Operation:
    """One wish of one client, however often it had to be sent.

    Attributes:
        client: Its User-Agent, which the log keeps with the job; no two operations share one.
        kind: How it was asked.
        asked: What was asked.
        keyed: Every sending carried the same idempotency key.
        sendings: How often the request itself was sent.
        accepted: The job of each answer that accepted it, in order.
        readings: The streams that were opened.
        statuses: The job's states as they were seen, in order.
        cancel_confirmed: A cancellation was answered with 200.
        answered: The client came to an end: it has its answer, or knows that there is none.
        trouble: An answer that no client should ever get, in words.
    """

    client: str
    kind: Kind
    asked: Asked
    keyed: bool
    sendings: int
    accepted: tuple[str, ...] = ()
    readings: tuple[Reading, ...] = ()
    statuses: tuple[str, ...] = ()
    cancel_confirmed: bool = False
    answered: bool = True
    trouble: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A job as the service shows it in the end."""

    job: str
    status: str
    text: str | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What the judge needs of a line of the log."""

    position: int
    stream: str
    version: int
    type: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Everything that was recorded.

    Attributes:
        operations: Of all clients.
        outcomes: Of every job, by its id.
        events: The whole log.
        undisturbed: The answers of a service that nobody disturbed.
        chain: What ``semantic events verify`` found wrong; empty if the chain holds.
    """

    operations: tuple[Operation, ...]
    outcomes: Mapping[str, Outcome]
    events: tuple[Event, ...]
    undisturbed: Mapping[Asked, str]
    chain: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """A promise that was not kept.

    Attributes:
        promise: Short name of the promise.
        subject: The job, client or place in the log.
        what: What is wrong with it.
    """

    promise: str
    subject: str
    what: str
