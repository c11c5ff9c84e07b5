"""The webhooks that the routes show, and the bodies of webhook messages."""

from __future__ import annotations

from typing import Any, Final

from api.background.batches import wire_id
from api.protocols.batches.endpoints import ANTHROPIC
from api.schemas.webhooks import WebhookObject
from domain.batch.state import Batch
from domain.usecases.webhooks import batch_event
from domain.webhook.delivery import Webhook

#: Most webhooks in the object of a job.
SHOWN_MAX: Final = 20


def webhook_object(webhook: Webhook) -> WebhookObject:
    """Return a webhook as clients see it."""
    return {
        "id": webhook.id,
        "object": "webhook",
        "type": webhook.event,
        "subject": webhook.subject,
        "url": webhook.url,
        "state": webhook.state.value,
        "attempts": webhook.attempts,
        "created_at": webhook.created_at,
        "last_attempt_at": webhook.last_at,
        "next_attempt_at": webhook.next_at,
        "status": webhook.status,
        "error": webhook.error,
    }


def batch_message(batch: Batch) -> dict[str, Any]:
    """Return the body of a message about a batch; both dialects share it."""
    prefix = "msgbatch_" if batch.facts.protocol == ANTHROPIC else "batch_"
    name = wire_id(batch.id, prefix)
    path = "/v1/messages/batches" if batch.facts.protocol == ANTHROPIC else "/v1/batches"
    counts = batch.counts
    return {
        "id": name,
        "object": "batch",
        "status": batch_event(batch).removeprefix("batch."),
        "endpoint": batch.facts.endpoint,
        "lines": batch.facts.lines,
        "counts": {
            "succeeded": counts.succeeded if counts else 0,
            "errored": counts.errored if counts else 0,
            "canceled": counts.canceled if counts else 0,
            "expired": counts.expired if counts else 0,
        },
        "created_at": batch.created_at,
        "ended_at": batch.ended_at,
        "links": {"self": f"{path}/{name}"},
    }
