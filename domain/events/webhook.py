"""Events of webhooks, each on a stream of its own, ``webhook-…``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookGivenUp:
    """All tries of the schedule failed, or the receiver refused the webhook for good.

    Attributes:
        subject: The job or the batch that ended.
        event: Type of the message, for example ``job.completed``.
        url: URL of the receiver.
        attempts: Number of tries.
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
