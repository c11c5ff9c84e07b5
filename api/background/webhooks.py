"""What the routes need for webhooks, and what the messages tell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from api.background.batches import wire_id
from api.protocols.batches.endpoints import ANTHROPIC
from api.schemas.base import WebhookBody
from api.schemas.webhooks import WebhookObject
from domain.batch.state import Batch
from domain.errors import InvalidRequest
from domain.usecases.webhooks import batch_event
from domain.webhook.delivery import Webhook
from domain.webhook.ports import WebhookStore
from domain.webhook.targets import parse_target, refuse_literal

#: Webhooks that are shown with their job.
SHOWN_MAX: Final = 20
_FIELD: Final = "webhook.url"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookServices:
    """What the routes need.

    Attributes:
        store: The webhooks.
        from_requests: Whether a request may name its own.
        allow_hosts: Hosts that may be anywhere.
    """

    store: WebhookStore
    from_requests: bool = True
    allow_hosts: tuple[str, ...] = ()


def webhook_url(wire: WebhookBody | None, shelf: WebhookServices) -> str | None:
    """Return the URL that a request names, if it names one that may be called.

    A name is resolved when it is called, and judged again then.

    Raises:
        InvalidRequest: It may not.
    """
    if wire is None:
        return None
    if not shelf.from_requests:
        raise InvalidRequest("requests may not name webhooks here", field=_FIELD)
    try:
        refuse_literal(parse_target(wire.url), shelf.allow_hosts)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, field=_FIELD) from error
    return wire.url


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
    """Return what a message tells of a batch; the same for both dialects."""
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
