"""What is said of webhooks, each on a stream of its own, ``webhook-…``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookGivenUp:
    """Its receiver was told of an end as often as the schedule says, or wants to hear no more.

    Attributes:
        subject: The job or the batch that ended.
        event: What would have been told, ``job.completed`` for one.
        url: Where it would have gone.
        attempts: How often it was tried.
        status: HTTP status of the last answer, if there was one.
        error: What went wrong the last time.
    """

    subject: str
    event: str
    url: str
    attempts: int
    error: str
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRetried:
    """Somebody asked for it to be sent again."""

    reason: str


WebhookEvent = WebhookGivenUp | WebhookRetried
