"""The table of operations, their routes, and the replies to requests without a route."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from inspect import iscoroutinefunction
from typing import Any, Final
from urllib.parse import unquote

from api.app import App
from api.dialects.agents.routes import AGENT_OPERATIONS
from api.dialects.anthropic.routes import MESSAGE_OPERATIONS
from api.dialects.batches.anthropic import MESSAGE_BATCH_OPERATIONS
from api.dialects.batches.openai import BATCH_OPERATIONS, FILE_OPERATIONS
from api.dialects.decisions import DECISION_OPERATIONS
from api.dialects.embeddings import EMBEDDING_OPERATIONS
from api.dialects.jobs.routes import JOB_OPERATIONS, WEBHOOK_OPERATIONS
from api.dialects.jobs.schedules import SCHEDULE_OPERATIONS
from api.dialects.ollama.routes import OLLAMA_OPERATIONS, managed_by
from api.dialects.openai_chat.parse import CHAT_OPERATIONS
from api.dialects.openai_chat.stored import STORED_OPERATIONS
from api.dialects.openai_completions import TEXT_OPERATIONS
from api.dialects.openai_responses.conversation_routes import CONVERSATION_OPERATIONS
from api.dialects.openai_responses.routes import RESPONSE_OPERATIONS
from api.dialects.rerank import RERANK_OPERATIONS
from api.dialects.tokenize import TOKEN_OPERATIONS
from api.errors import TransportError, dialects_of_path
from api.http.messages import (
    Access,
    Caller,
    Dialect,
    Handler,
    Reply,
    Request,
    Route,
    StreamReply,
    json_reply,
)
from api.http.operation import Operation, Place, refuse_unknown
from api.operate.engine import ENGINE_OPERATIONS
from api.operate.events import CHECK_OPERATIONS, EVENT_OPERATIONS
from api.operate.health import HEALTH_OPERATIONS
from api.operate.hub import HUB_OPERATIONS
from api.operate.metrics import METRIC_OPERATIONS
from api.operate.models import CLIENT_OPERATIONS, MODEL_OPERATIONS
from api.operate.openapi import OpenApiDocument
from api.operate.overview import OVERVIEW_OPERATIONS
from api.operate.status import STATUS_OPERATIONS, USAGE_OPERATIONS
from api.operate.subscriptions import SUBSCRIPTION_OPERATIONS
from api.operate.swaps import SWAP_OPERATIONS
from api.ui.page import page_routes


def _document(app: App) -> OpenApiDocument:
    return OpenApiDocument(app.version)


async def openapi(app: App, request: Request) -> Reply:
    """Return this document."""
    del request
    return Reply(body=await app.call(app.once(_document).read, OPERATIONS))


OPENAPI_OPERATIONS: Final = (Operation("GET /openapi.json", openapi, reply=dict[str, Any]),)
#: All operations.
OPERATIONS: Final = (
    *MESSAGE_OPERATIONS,
    *CHAT_OPERATIONS,
    *STORED_OPERATIONS,
    *TEXT_OPERATIONS,
    *EMBEDDING_OPERATIONS,
    *DECISION_OPERATIONS,
    *RERANK_OPERATIONS,
    *TOKEN_OPERATIONS,
    *RESPONSE_OPERATIONS,
    *CONVERSATION_OPERATIONS,
    *OLLAMA_OPERATIONS,
    *MESSAGE_BATCH_OPERATIONS,
    *FILE_OPERATIONS,
    *BATCH_OPERATIONS,
    *JOB_OPERATIONS,
    *SCHEDULE_OPERATIONS,
    *AGENT_OPERATIONS,
    *WEBHOOK_OPERATIONS,
    *EVENT_OPERATIONS,
    *CHECK_OPERATIONS,
    *SUBSCRIPTION_OPERATIONS,
    *ENGINE_OPERATIONS,
    *METRIC_OPERATIONS,
    *MODEL_OPERATIONS,
    *HUB_OPERATIONS,
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


def _require_scope(caller: Caller, access: Access) -> None:
    """Refuse an operation that the scope of the key does not have.

    Raises:
        TransportError: 403.
    """
    if not caller.may(access):
        message = (
            f"the key {caller.name!a} has the scope {caller.scope.value}, which does not allow"
            " this; see server.key_scopes"
        )
        raise TransportError(403, "insufficient_scope", message)


def _bind(operation: Operation, app: App) -> Handler:
    """Return the handler of an operation: it checks the key, and then answers."""
    path_parameters = [one for one in operation.parameters if one.place is Place.PATH]
    # Clients of other services may add parameters of their own to the routes of these.
    is_strict = dialects_of_path(operation.path) == (Dialect.NATIVE,) and operation.has_query

    is_blocking = not iscoroutinefunction(operation.endpoint)

    async def handle(request: Request) -> Reply | StreamReply:
        caller = request.caller
        _require_scope(caller, operation.needs)
        if caller.sees is not None and request.params:
            for parameter in path_parameters:
                parameter.read(request)  # a name that is not valid is no missing thing
            await app.call(app.ownership.require_named, caller, request.params)
        if is_strict:
            refuse_unknown(operation.parameters, request)
        if is_blocking:
            return await app.call(lambda: reply(operation.endpoint(app, request)))
        return reply(await operation.endpoint(app, request))

    def reply(found: Any) -> Reply | StreamReply:  # noqa: ANN401 - a reply, or the body of one
        whole = isinstance(found, Reply | StreamReply)
        return found if whole else json_reply(found, status=operation.status)

    return handle


class RouteTable:
    """Replies to requests that have no route."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._patterns = [(_segments(route.pattern), route.method) for route in routes]

    def allowed(self, route_path: str) -> tuple[str, ...]:
        """Return the methods of a path, sorted; none where the path does not exist.

        Args:
            route_path: Encoded, as ``api.http_server.request_head.RequestTarget`` spells it.
        """
        path = [unquote(segment) for segment in _segments(route_path)]
        methods = {method for pattern, method in self._patterns if _matches(pattern, path)}
        if not methods:
            return ()
        if "GET" in methods:
            methods.add("HEAD")
        return tuple(sorted(methods | {"OPTIONS"}))

    def unrouted(self, method: str, route_path: str) -> Reply:
        """Reply to a request without a route.

        Raises:
            TransportError: 404 with a path that is similar, 405 with ``allow``, or 501 for Ollama's
                management of models.
        """
        if method == "OPTIONS" and route_path in ("*", "%2A"):
            every = {method for _, method in self._patterns} | {"HEAD", "OPTIONS"}
            return Reply(status=204, headers={"allow": ", ".join(sorted(every))})
        methods = self.allowed(route_path)
        if not methods and (command := managed_by(route_path)) is not None:
            message = f"models are managed on the machine of the service: {command}"
            raise TransportError(501, "not_implemented", message)
        if not methods:
            raise TransportError(404, "not_found", self._nothing_at(route_path))
        allow = {"allow": ", ".join(methods)}
        if method == "OPTIONS":
            return Reply(status=204, headers=allow)
        message = f"this path answers {', '.join(methods)}"
        raise TransportError(405, "method_not_allowed", message, headers=allow)

    def _nothing_at(self, route_path: str) -> str:
        """Return that a path does not exist, and which one may be meant."""
        paths = {"/" + "/".join(pattern) for pattern, _ in self._patterns if _UI not in pattern}
        of_ollama = sorted(path for path in paths if path.startswith("/api/"))
        if route_path.startswith("/api/"):
            return f"there is nothing at this path; of Ollama's API use {', '.join(of_ollama)}"
        near = get_close_matches(route_path[:_NEAR_CHARS_MAX], sorted(paths), 1)
        if near:
            return f"there is nothing at this path; did you mean {near[0]}?"
        return "there is nothing at this path; all paths stand in /openapi.json"


#: Characters of an unknown path that are compared with the known ones.
_NEAR_CHARS_MAX: Final = 100
_UI: Final = "ui"


def _segments(path: str) -> list[str]:
    return path.removeprefix("/").rstrip("/").split("/")


def _matches(pattern: list[str], path: list[str]) -> bool:
    return len(pattern) == len(path) and all(
        (bool(part) if wanted.startswith("{") else wanted == part)
        for wanted, part in zip(pattern, path, strict=True)
    )
