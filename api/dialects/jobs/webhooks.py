"""``/v1/webhooks``: the list of webhooks, and a new delivery of one."""

from __future__ import annotations

from typing import Final

from api.app import App
from api.dialects.jobs.bodies import WebhookList, WebhookObject
from api.http.bodies import WEBHOOK_ID_PATTERN
from api.http.messages import Reply, Request, json_reply
from api.http.operation import Operation, choice, page_size, path, text
from domain.webhook.delivery import (
    Webhook,
    WebhookId,
    WebhookState,
)

_WEBHOOK_ID: Final = path("webhook_id", pattern=WEBHOOK_ID_PATTERN, example="webhook-" + "0" * 32)
_LIMIT: Final = page_size(default=20, most=100)
_BEFORE: Final = text("before", "only webhooks older than this one", pattern=WEBHOOK_ID_PATTERN)
_STATE: Final = choice("state", "only webhooks in this state", WebhookState, default=None)


async def list_webhooks(app: App, request: Request) -> Reply:
    """List webhooks, newest first."""
    limit, before = _LIMIT.read(request), _BEFORE.read(request)
    found = await app.call(
        app.webhook_store.page,
        limit=limit + 1,
        before=WebhookId(before) if before else None,
        state=_STATE.read(request),
        owner=request.caller.sees,
    )
    data = [webhook_object(webhook) for webhook in found[:limit]]
    body: WebhookList = {
        "object": "list",
        "data": data,
        "has_more": len(found) > limit,
        "next_before": data[-1]["id"] if len(found) > limit else None,
    }
    return json_reply(body)


async def retry_webhook(app: App, request: Request) -> Reply:
    """Deliver a webhook again, at once and with all its attempts.

    The webhook thread sends it within a second.
    """
    revived = await app.call(
        app.webhook_retries.retry, WebhookId(_WEBHOOK_ID.read(request)), reason="api"
    )
    return json_reply(webhook_object(revived), status=202)


WEBHOOK_OPERATIONS: Final = (
    Operation(
        "GET /v1/webhooks", list_webhooks, parameters=(_LIMIT, _BEFORE, _STATE), reply=WebhookList
    ),
    Operation(
        "POST /v1/webhooks/{webhook_id}/retry",
        retry_webhook,
        parameters=(_WEBHOOK_ID,),
        reply=WebhookObject,
        status=202,
    ),
)


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
