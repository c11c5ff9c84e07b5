"""One webhook: its state, its schedule, its answers, and its ports."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, NewType, Protocol

from domain.log.trace import parse_traceparent
from domain.values import Owner

#: ``webhook-`` and 32 hex digits: the name of one message to one receiver, and of its stream.
WebhookId = NewType("WebhookId", str)

WEBHOOK_PREFIX: Final = "webhook-"
#: Tries at the same time, and lookups of names that have outlived theirs.
AT_ONCE: Final = 64
#: Longest try, from resolving the name to the head of the answer, in seconds.
TIMEOUT_S: Final = 15.0
#: How long a webhook is listed after its end, in seconds.
KEPT_S: Final = 7 * 24 * 3600.0
#: Waits before the second try and so on, in seconds; 21.6 hours in all.
SCHEDULE_S: Final = (5.0, 60.0, 300.0, 1800.0, 7200.0, 18_000.0, 50_400.0)
#: A wait is longer by up to this part of it, so that what failed together comes back spread out.
JITTER: Final = 0.2
#: Longest that a receiver's Retry-After can put a try off, in seconds.
RETRY_AFTER_MAX_S: Final = 24 * 3600.0
#: Characters of an error that are kept.
ERROR_CHARS_MAX: Final = 300
_GONE: Final = 410
_ID_DIGITS: Final = 32


class WebhookState(StrEnum):
    """Status of a webhook."""

    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """One message to one receiver; instants are RFC 3339 in UTC with microseconds.

    Attributes:
        id: The same on every try.
        subject: The job or the batch that ended.
        event: ``job.completed`` and so on.
        host: Host and port of the URL; webhooks of one host and owner share places.
        position: Position of its event in the log.
        body: The message, byte for byte the same on every try.
        created_at: When the event was found.
        attempts: Number of tries that were begun.
        next_at: When the next try is due; ``None`` once it has ended. During a try, when the try
            counts as dead.
        last_at: When the last try ended.
        status: HTTP status of the last answer.
        trace: W3C ``traceparent`` of the request of its subject, if that is known.
        owner: The API key of the request that named the URL; ``None`` for a URL of the settings.
    """

    id: WebhookId
    subject: str
    event: str
    url: str
    host: str
    position: int
    body: bytes
    created_at: str
    state: WebhookState = WebhookState.PENDING
    attempts: int = 0
    next_at: str | None = None
    last_at: str | None = None
    status: int | None = None
    error: str | None = None
    trace: str | None = None
    owner: Owner | None = None

    def begin_try(self, *, until: str) -> Webhook:
        """Return the webhook during its next try, which counts as dead at ``until``."""
        return replace(self, next_at=until, attempts=self.attempts + 1)

    def end_try(
        self, answer: DeliveryResult, *, state: WebhookState, at: str, next_at: str | None
    ) -> Webhook:
        """Return the webhook after a try that ended at ``at``."""
        return replace(
            self,
            state=state,
            status=answer.status,
            error=answer.error,
            last_at=at,
            next_at=next_at,
        )

    def revive(self, *, at: str) -> Webhook:
        """Return the webhook due at ``at`` with all its tries."""
        return replace(self, state=WebhookState.PENDING, attempts=0, next_at=at)

    def traceparent(self) -> str | None:
        """Return the header of the present try: a span of its own in the trace of the request."""
        trace = parse_traceparent(self.trace)
        return None if trace is None else str(trace.derived(self.id, self.attempts))


@dataclass(frozen=True, slots=True)
class DueHost:
    """A host with due webhooks of one owner."""

    host: str
    owner: Owner | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """How one try ended.

    Attributes:
        status: HTTP status; ``None`` if there was no answer.
        error: What went wrong; ``None`` only for a status of the 200s.
        retry_after_s: What the receiver asks for, in seconds.
        is_final: Whether trying again is pointless.
    """

    status: int | None = None
    error: str | None = None
    retry_after_s: float | None = None
    is_final: bool = False


def answer_of_status(status: int, retry_after_s: float | None = None) -> DeliveryResult:
    """Return what a status means: 2xx is success, 410 asks for no more, all else is tried again."""
    if 200 <= status < 300:  # noqa: PLR2004 - HTTP
        return DeliveryResult(status=status)
    if 300 <= status < 400:  # noqa: PLR2004 - HTTP
        return DeliveryResult(status=status, error=f"HTTP {status}: redirects are not followed")
    error = f"HTTP {status}"
    is_final = status == _GONE
    return DeliveryResult(
        status=status, error=error, retry_after_s=retry_after_s, is_final=is_final
    )


def webhook_id(event_id: str, url: str) -> WebhookId:
    """Return the name of the message about an event to a receiver."""
    digest = hashlib.sha256(f"{event_id}\n{url}".encode()).hexdigest()
    return WebhookId(WEBHOOK_PREFIX + digest[:_ID_DIGITS])


def next_try(
    webhook: Webhook, answer: DeliveryResult, now: datetime, waits_s: Sequence[float]
) -> datetime:
    """Return when to try again a webhook that has tries left.

    The jitter follows from the webhook and the try, so it needs no source of chance.
    """
    wait_s = waits_s[max(0, webhook.attempts - 1)]
    seed = hashlib.sha256(f"{webhook.id}/{webhook.attempts}".encode()).digest()
    wait_s *= 1 + JITTER * seed[0] / 255
    asked_s = min(answer.retry_after_s or 0.0, RETRY_AFTER_MAX_S)
    return now + timedelta(seconds=max(wait_s, asked_s))


class WebhookStore(Protocol):
    """Webhooks and how far the log has been read for them.

    Instants are RFC 3339 texts in UTC with microseconds, which sort as they follow each other.
    Every method raises ``LogUnavailable`` where the database cannot be read or written.
    """

    def position(self) -> int:
        """Return the position of the last event that was read."""

    def add(self, webhooks: Sequence[Webhook], *, position: int) -> None:
        """Store new webhooks and the position up to which the log was read, both or neither.

        A stored webhook stays as it is; a lower position changes nothing.
        """

    def due_hosts(self, now: str, *, limit: int) -> tuple[DueHost, ...]:
        """Return hosts with a due try: the first of every owner, the second of every owner, and on.

        Of one owner, and in each of these rounds, the longest waiting comes first.
        """

    def claim(self, due: DueHost, *, now: str, until: str, limit: int) -> tuple[Webhook, ...]:
        """Begin a try of the webhooks of a host and an owner that are due, oldest first.

        Their ``attempts`` are incremented, and no other call returns them before ``until``.
        """

    def settle(
        self,
        webhook_id: WebhookId,
        *,
        attempt: int,
        state: WebhookState,
        answer: DeliveryResult,
        at: str,
        next_at: str | None,
    ) -> bool:
        """Record the end of a try if it is the latest one; return whether it is."""

    def revive(self, webhook_id: WebhookId, *, at: str) -> Webhook | None:
        """Make a webhook due at once with all its tries; ``None`` if there is none."""

    def get(self, webhook_id: WebhookId) -> Webhook | None:
        """Return a webhook, if there is one."""

    def of_subject(self, subject: str, *, limit: int) -> tuple[Webhook, ...]:
        """Return the webhooks of a job or a batch, newest first."""

    def page(
        self,
        *,
        limit: int,
        before: WebhookId | None = None,
        state: WebhookState | None = None,
        owner: Owner | None = None,
    ) -> tuple[Webhook, ...]:
        """Return webhooks, newest first.

        Args:
            before: The last one of the page before.
            owner: Only webhooks whose URL a request of this API key named.
        """

    def count_pending(self) -> int:
        """Return how many webhooks wait for a try."""

    def forget(self, *, before: str, limit: int) -> int:
        """Delete webhooks that ended before an instant; return how many."""


class WebhookSender(Protocol):
    """Sends one message. Belongs to one event loop."""

    async def send(self, webhook: Webhook) -> DeliveryResult:
        """Try once, within a bounded time, and return the result; network errors are results."""
