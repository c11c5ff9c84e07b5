"""What delivering webhooks needs from outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from domain.values import Owner
from domain.webhook.delivery import DeliveryResult, DueHost, Webhook, WebhookId, WebhookState


class WebhookStore(Protocol):
    """Webhooks and how far the log has been read for them.

    Instants are RFC 3339 texts in UTC with microseconds, which sort as they follow each other.
    Every method raises ``LogUnavailable`` where the database cannot be read or written.
    """

    def position(self) -> int:
        """Return the position of the last event that was read."""
        ...

    def add(self, webhooks: Sequence[Webhook], *, position: int) -> None:
        """Store new webhooks and the position up to which the log was read, both or neither.

        A stored webhook stays as it is; a lower position changes nothing.
        """
        ...

    def due_hosts(self, now: str, *, limit: int) -> tuple[DueHost, ...]:
        """Return hosts with a due try: the first of every owner, the second of every owner, and on.

        Of one owner, and in each of these rounds, the longest waiting comes first.
        """
        ...

    def claim(self, due: DueHost, *, now: str, until: str, limit: int) -> tuple[Webhook, ...]:
        """Begin a try of the webhooks of a host and an owner that are due, oldest first.

        Their ``attempts`` are incremented, and no other call returns them before ``until``.
        """
        ...

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
        ...

    def revive(self, webhook_id: WebhookId, *, at: str) -> Webhook | None:
        """Make a webhook due at once with all its tries; ``None`` if there is none."""
        ...

    def get(self, webhook_id: WebhookId) -> Webhook | None:
        """Return a webhook, if there is one."""
        ...

    def of_subject(self, subject: str, *, limit: int) -> tuple[Webhook, ...]:
        """Return the webhooks of a job or a batch, newest first."""
        ...

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
            limit: Most rows.
            before: The last one of the page before.
            state: Only webhooks in this state.
            owner: Only webhooks whose URL a request of this API key named.
        """
        ...

    def count_pending(self) -> int:
        """Return how many webhooks wait for a try."""
        ...

    def forget(self, *, before: str, limit: int) -> int:
        """Delete webhooks that ended before an instant; return how many."""
        ...


class WebhookSender(Protocol):
    """Sends one message. Belongs to one event loop."""

    async def send(self, webhook: Webhook) -> DeliveryResult:
        """Try once, within a bounded time, and return the result; network errors are results."""
        ...
