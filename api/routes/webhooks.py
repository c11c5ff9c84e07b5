"""``/v1/webhooks``: what receivers were told, and telling it again."""

from __future__ import annotations

from typing import Final

from api.background.webhooks import webhook_object
from api.http.messages import Reply, Request
from api.http.query import choice, text, whole_number
from api.http.replies import json_reply
from api.schemas.base import WEBHOOK_ID_PATTERN
from api.schemas.webhooks import WebhookList
from api.services import Services
from domain.usecases.webhooks import retry_webhook
from domain.webhook.delivery import WebhookId, WebhookState

PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 100


async def list_webhooks(request: Request, *, services: Services) -> Reply:
    """List webhooks, newest first."""
    query = request.query
    limit = whole_number(query, "limit", default=PAGE_DEFAULT, least=1, most=PAGE_MAX)
    state = choice(query, "state", [state.value for state in WebhookState])
    before = text(query, "before", pattern=WEBHOOK_ID_PATTERN)
    found = await services.call(
        services.webhooks.store.page,
        limit=limit + 1,
        before=WebhookId(before) if before else None,
        state=WebhookState(state) if state else None,
    )
    data = [webhook_object(webhook) for webhook in found[:limit]]
    body: WebhookList = {
        "object": "list",
        "data": data,
        "has_more": len(found) > limit,
        "next_before": data[-1]["id"] if len(found) > limit else None,
    }
    return json_reply(body)


async def retry(request: Request, *, services: Services) -> Reply:
    """Send a webhook again; the thread finds it due within the second."""
    revived = await services.call(
        retry_webhook,
        WebhookId(request.params["webhook_id"]),
        reason="api",
        log=services.log,
        store=services.webhooks.store,
        ids=services.ids,
        clock=services.clock,
    )
    return json_reply(webhook_object(revived), status=202)
