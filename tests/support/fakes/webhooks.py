"""Webhooks in memory, and a receiver that plays a script."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from domain.errors import LogUnavailable
from domain.values import Owner
from domain.webhook.delivery import DeliveryResult, DueHost, Webhook, WebhookId, WebhookState


class InMemoryWebhookStore:
    """``WebhookStore`` in a dict; it can be away."""

    def __init__(self) -> None:
        self.rows: dict[WebhookId, Webhook] = {}
        self.read_up_to = 0
        self.unavailable = False

    def position(self) -> int:
        self._check()
        return self.read_up_to

    def add(self, webhooks: Sequence[Webhook], *, position: int) -> None:
        self._check()
        if position > self.read_up_to:
            self.rows = {one.id: one for one in webhooks} | self.rows
            self.read_up_to = position

    def due_hosts(self, now: str, *, limit: int) -> tuple[DueHost, ...]:
        self._check()
        waiting: dict[DueHost, tuple[str, str]] = {}
        for one in self._due(now):
            due = DueHost(one.host, one.owner)
            waiting.setdefault(due, (one.next_at or "", one.host))
        turns = Counter[Owner | None]()
        order: list[tuple[int, tuple[str, str], str, DueHost]] = []
        for due in sorted(waiting, key=lambda one: waiting[one]):
            turns[due.owner] += 1
            order.append((turns[due.owner], waiting[due], due.owner or "", due))
        return tuple(due for *_, due in sorted(order, key=lambda one: one[:-1])[:limit])

    def claim(self, due: DueHost, *, now: str, until: str, limit: int) -> tuple[Webhook, ...]:
        self._check()
        chosen = [one for one in self._due(now) if DueHost(one.host, one.owner) == due]
        return tuple(self._keep(one.begin_try(until=until)) for one in chosen[:limit])

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
        self._check()
        found = self.rows.get(webhook_id)
        if found is None or (found.state, found.attempts) != (WebhookState.PENDING, attempt):
            return False
        self._keep(found.end_try(answer, state=state, at=at, next_at=next_at))
        return True

    def count_pending(self) -> int:
        self._check()
        return sum(one.state is WebhookState.PENDING for one in self.rows.values())

    def revive(self, webhook_id: WebhookId, *, at: str) -> Webhook | None:
        self._check()
        found = self.rows.get(webhook_id)
        if found is None:
            return None
        return self._keep(found.revive(at=at))

    def get(self, webhook_id: WebhookId) -> Webhook | None:
        self._check()
        return self.rows.get(webhook_id)

    def of_subject(self, subject: str, *, limit: int) -> tuple[Webhook, ...]:
        return tuple(one for one in self._newest() if one.subject == subject)[:limit]

    def page(
        self,
        *,
        limit: int,
        before: WebhookId | None = None,
        state: WebhookState | None = None,
        owner: Owner | None = None,
    ) -> tuple[Webhook, ...]:
        newest = [one for one in self._newest() if owner in {None, one.owner}]
        if before is not None:
            ids = [one.id for one in newest]
            newest = newest[ids.index(before) + 1 :] if before in ids else []
        return tuple(one for one in newest if state in {None, one.state})[:limit]

    def forget(self, *, before: str, limit: int) -> int:
        self._check()
        over = [
            one.id
            for one in self.rows.values()
            if one.state is not WebhookState.PENDING and (one.last_at or "") < before
        ][:limit]
        for webhook_id in over:
            del self.rows[webhook_id]
        return len(over)

    def _due(self, now: str) -> list[Webhook]:
        due = [
            one
            for one in self.rows.values()
            if one.state is WebhookState.PENDING and one.next_at is not None and one.next_at <= now
        ]
        return sorted(due, key=lambda one: (one.next_at, one.position, one.id))

    def _newest(self) -> list[Webhook]:
        self._check()
        return sorted(self.rows.values(), key=lambda one: (one.position, one.id), reverse=True)

    def _keep(self, webhook: Webhook) -> Webhook:
        self.rows[webhook.id] = webhook
        return webhook

    def _check(self) -> None:
        if self.unavailable:
            raise LogUnavailable("the webhooks cannot be read")


class ScriptedSender:
    """``WebhookSender`` with answers chosen by the test; records its calls."""

    def __init__(self, *answers: DeliveryResult) -> None:
        self.answers = list(answers)
        self.sent: list[Webhook] = []

    async def send(self, webhook: Webhook) -> DeliveryResult:
        self.sent.append(webhook)
        return self.answers.pop(0) if self.answers else DeliveryResult(status=200)

    async def close(self) -> None:
        return
