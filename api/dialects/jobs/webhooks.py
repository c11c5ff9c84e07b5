"""``/v1/webhooks``: the list of webhooks, and a new delivery of one."""

from __future__ import annotations

from typing import Final

from api.app import App
from api.dialects.encoding import NewestPage, newest_page
from api.dialects.jobs.bodies import WebhookObject
from api.dialects.jobs.objects import webhook_object
from api.http.bodies import WEBHOOK_ID_PATTERN
from api.http.messages import Reply, Request, json_reply
from api.http.operation import Operation, choice, page_size, path, text
from domain.webhook.delivery import WebhookId, WebhookState

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
    return json_reply(newest_page(data, has_more=len(found) > limit))


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
        "GET /v1/webhooks",
        list_webhooks,
        parameters=(_LIMIT, _BEFORE, _STATE),
        reply=NewestPage[WebhookObject],
    ),
    Operation(
        "POST /v1/webhooks/{webhook_id}/retry",
        retry_webhook,
        parameters=(_WEBHOOK_ID,),
        reply=WebhookObject,
        status=202,
    ),
)
