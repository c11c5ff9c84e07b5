"""The table of operations; the routes and the OpenAPI document both derive from it."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from api.errors import dialect_of, error_reply
from api.http.messages import Handler, Reply, Request, Route, StreamReply
from api.http.operation import Endpoint, Operation
from api.http.replies import json_reply
from api.openapi.document import openapi_document
from api.routes.agents import AGENT_OPERATIONS
from api.routes.completions import COMPLETION_OPERATIONS
from api.routes.events import EVENT_OPERATIONS
from api.routes.files import FILE_OPERATIONS
from api.routes.health import HEALTH_OPERATIONS
from api.routes.jobs import JOB_OPERATIONS
from api.routes.message_batches import MESSAGE_BATCH_OPERATIONS
from api.routes.messages import MESSAGE_OPERATIONS
from api.routes.models import MODEL_OPERATIONS
from api.routes.openai_batches import BATCH_OPERATIONS
from api.routes.responses import RESPONSE_OPERATIONS
from api.routes.webhooks import WEBHOOK_OPERATIONS
from api.services import Services
from domain.errors import SemanticError


async def get_openapi(request: Request, *, services: Services) -> Reply:
    """Return the OpenAPI document."""
    del request
    return json_reply(await services.call(openapi_document, OPERATIONS, services.version))


#: All operations.
OPERATIONS: Final[tuple[Operation, ...]] = (
    *MESSAGE_OPERATIONS,
    *COMPLETION_OPERATIONS,
    *RESPONSE_OPERATIONS,
    *MESSAGE_BATCH_OPERATIONS,
    *FILE_OPERATIONS,
    *BATCH_OPERATIONS,
    *MODEL_OPERATIONS,
    *JOB_OPERATIONS,
    *AGENT_OPERATIONS,
    *WEBHOOK_OPERATIONS,
    *EVENT_OPERATIONS,
    *HEALTH_OPERATIONS,
    Operation(
        "GET",
        "/openapi.json",
        get_openapi,
        id="openapi",
        summary="Return this document",
        reply=dict[str, Any],
    ),
)


def routes(services: Services) -> tuple[Route, ...]:
    """Return the routes of a service."""
    return tuple(
        Route(
            method=operation.method,
            pattern=operation.path,
            handler=_typed(partial(operation.endpoint, services=services)),
            dialect=dialect_of(operation.path, {}),
        )
        for operation in OPERATIONS
    )


def _typed(endpoint: Endpoint) -> Handler:
    """Return a handler that replies to every typed failure in the dialect of the caller."""

    async def handle(request: Request) -> Reply | StreamReply:
        try:
            return await endpoint(request)
        except SemanticError as error:
            dialect = dialect_of(request.path, request.headers)
            return error_reply(error, dialect, request.id)

    return handle
