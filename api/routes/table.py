"""The table of operations; the routes and the OpenAPI document both derive from it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, Final

from api.access.ownership import require_scope
from api.http.messages import Handler, Reply, Request, Route, StreamReply
from api.http.operation import Operation
from api.http.parameters import Place
from api.routes.admin.clients import CLIENT_OPERATIONS
from api.routes.admin.engine import ENGINE_OPERATIONS
from api.routes.admin.metrics import METRIC_OPERATIONS
from api.routes.admin.models import MODEL_OPERATIONS
from api.routes.admin.overview import OVERVIEW_OPERATIONS
from api.routes.admin.status import STATUS_OPERATIONS
from api.routes.admin.swaps import SWAP_OPERATIONS
from api.routes.admin.usage import USAGE_OPERATIONS
from api.routes.agents.agents import AGENT_OPERATIONS
from api.routes.agents.cache import AGENT_CACHE_OPERATIONS
from api.routes.completions import COMPLETION_OPERATIONS
from api.routes.files import FILE_OPERATIONS
from api.routes.health import HEALTH_OPERATIONS
from api.routes.jobs import JOB_OPERATIONS
from api.routes.log.checks import CHECK_OPERATIONS
from api.routes.log.events import EVENT_OPERATIONS
from api.routes.log.timeline import TIMELINE_OPERATIONS
from api.routes.message_batches import MESSAGE_BATCH_OPERATIONS
from api.routes.messages import MESSAGE_OPERATIONS
from api.routes.openai_batches import BATCH_OPERATIONS
from api.routes.responses import RESPONSE_OPERATIONS
from api.routes.webhooks import WEBHOOK_OPERATIONS
from api.services.route_services import OwnershipService, Services, StatusService
from api.ui.page import page_routes


async def get_openapi(request: Request, status: StatusService) -> Reply:
    """Return the OpenAPI document."""
    del request
    return Reply(body=await status.call(status.document.read, OPERATIONS))


OPENAPI_OPERATIONS: Final = (
    Operation(
        "GET /openapi.json",
        get_openapi,
        id="openapi",
        summary="Return this document",
        reply=dict[str, Any],
    ),
)
#: The operations of each field of ``Services``.
_OPERATIONS_OF: Final[Mapping[str, tuple[Operation, ...]]] = MappingProxyType(
    {
        "generation": (*MESSAGE_OPERATIONS, *COMPLETION_OPERATIONS),
        "responses": RESPONSE_OPERATIONS,
        "batches": (*MESSAGE_BATCH_OPERATIONS, *FILE_OPERATIONS, *BATCH_OPERATIONS),
        "jobs": JOB_OPERATIONS,
        "agents": (*AGENT_OPERATIONS, *AGENT_CACHE_OPERATIONS),
        "webhooks": WEBHOOK_OPERATIONS,
        "events": (*EVENT_OPERATIONS, *CHECK_OPERATIONS, *TIMELINE_OPERATIONS),
        "engine": ENGINE_OPERATIONS,
        "metrics": METRIC_OPERATIONS,
        "models": (*MODEL_OPERATIONS, *CLIENT_OPERATIONS),
        "swaps": SWAP_OPERATIONS,
        "status": (*HEALTH_OPERATIONS, *STATUS_OPERATIONS, *OPENAPI_OPERATIONS),
        "overview": OVERVIEW_OPERATIONS,
        "usage": USAGE_OPERATIONS,
    }
)
#: All operations.
OPERATIONS: Final = tuple(chain.from_iterable(_OPERATIONS_OF.values()))


def routes(services: Services) -> tuple[Route, ...]:
    """Return the routes over the services, and those of the page."""
    bound = tuple(
        Route(
            method=operation.method,
            pattern=operation.path,
            handler=_bind(operation, getattr(services, field), services.ownership),
            takes_upload=operation.takes_upload,
        )
        for field, operations in _OPERATIONS_OF.items()
        for operation in operations
    )
    return (*bound, *page_routes())


def _bind(operation: Operation, service: object, ownership: OwnershipService) -> Handler:
    """Return the handler of an operation: it checks the key, and then answers."""
    path_parameters = [one for one in operation.parameters if one.place is Place.PATH]

    async def handle(request: Request) -> Reply | StreamReply:
        caller = request.caller
        require_scope(caller, operation.needs)
        if caller.sees is not None and request.params:
            for parameter in path_parameters:
                parameter.read(request)  # a name that is not valid is no missing thing
            await ownership.call(ownership.check.require_named, caller, request.params)
        return await operation.endpoint(request, service)

    return handle
