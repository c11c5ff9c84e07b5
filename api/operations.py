"""The table of operations; the routes and the OpenAPI document both derive from it."""

from __future__ import annotations

from typing import Any, Final

from api.access.ownership import require_scope
from api.app import App
from api.dialects.agents.routes import AGENT_CACHE_OPERATIONS, AGENT_OPERATIONS
from api.dialects.anthropic.routes import MESSAGE_OPERATIONS
from api.dialects.batches.anthropic import MESSAGE_BATCH_OPERATIONS
from api.dialects.batches.files import FILE_OPERATIONS
from api.dialects.batches.openai import BATCH_OPERATIONS
from api.dialects.jobs.routes import JOB_OPERATIONS
from api.dialects.jobs.webhooks import WEBHOOK_OPERATIONS
from api.dialects.openai_chat.routes import COMPLETION_OPERATIONS
from api.dialects.openai_responses.routes import RESPONSE_OPERATIONS
from api.http.messages import Handler, Reply, Request, Route, StreamReply
from api.http.operation import Operation
from api.http.parameters import Place
from api.operate.engine import ENGINE_OPERATIONS
from api.operate.events import CHECK_OPERATIONS, EVENT_OPERATIONS, TIMELINE_OPERATIONS
from api.operate.health import HEALTH_OPERATIONS
from api.operate.models import CLIENT_OPERATIONS, MODEL_OPERATIONS
from api.operate.overview import OVERVIEW_OPERATIONS
from api.operate.status import METRIC_OPERATIONS, STATUS_OPERATIONS, USAGE_OPERATIONS
from api.operate.swaps import SWAP_OPERATIONS
from api.ui.page import page_routes


async def get_openapi(app: App, request: Request) -> Reply:
    """Return the OpenAPI document."""
    del request
    return Reply(body=await app.call(app.openapi.read, OPERATIONS))


OPENAPI_OPERATIONS: Final = (
    Operation(
        "GET /openapi.json",
        get_openapi,
        id="openapi",
        summary="Return this document",
        reply=dict[str, Any],
    ),
)
#: All operations.
OPERATIONS: Final = (
    *MESSAGE_OPERATIONS,
    *COMPLETION_OPERATIONS,
    *RESPONSE_OPERATIONS,
    *MESSAGE_BATCH_OPERATIONS,
    *FILE_OPERATIONS,
    *BATCH_OPERATIONS,
    *JOB_OPERATIONS,
    *AGENT_OPERATIONS,
    *AGENT_CACHE_OPERATIONS,
    *WEBHOOK_OPERATIONS,
    *EVENT_OPERATIONS,
    *CHECK_OPERATIONS,
    *TIMELINE_OPERATIONS,
    *ENGINE_OPERATIONS,
    *METRIC_OPERATIONS,
    *MODEL_OPERATIONS,
    *CLIENT_OPERATIONS,
    *SWAP_OPERATIONS,
    *HEALTH_OPERATIONS,
    *STATUS_OPERATIONS,
    *OPENAPI_OPERATIONS,
    *OVERVIEW_OPERATIONS,
    *USAGE_OPERATIONS,
)


def routes(app: App) -> tuple[Route, ...]:
    """Return the routes of all operations, and those of the page."""
    bound = tuple(
        Route(
            method=operation.method,
            pattern=operation.path,
            handler=_bind(operation, app),
            takes_upload=operation.takes_upload,
        )
        for operation in OPERATIONS
    )
    return (*bound, *page_routes())


def _bind(operation: Operation, app: App) -> Handler:
    """Return the handler of an operation: it checks the key, and then answers."""
    path_parameters = [one for one in operation.parameters if one.place is Place.PATH]

    async def handle(request: Request) -> Reply | StreamReply:
        caller = request.caller
        require_scope(caller, operation.needs)
        if caller.sees is not None and request.params:
            for parameter in path_parameters:
                parameter.read(request)  # a name that is not valid is no missing thing
            await app.call(app.ownership.require_named, caller, request.params)
        return await operation.endpoint(app, request)

    return handle
