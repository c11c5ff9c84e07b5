"""The OpenAPI 3.1 document, built from the schemas and the list of operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from pydantic import TypeAdapter

from api.http.messages import Dialect
from api.openapi.agents import AGENT_OPERATIONS
from api.openapi.batches import BATCH_OPERATIONS
from api.openapi.operations import OPERATIONS, Operation
from api.openapi.responses import RESPONSE_OPERATIONS
from api.schemas.replies import AnthropicError, Health, OpenAIError, Problem

#: Every route, by method and pattern.
ALL_OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    **OPERATIONS,
    **AGENT_OPERATIONS,
    **RESPONSE_OPERATIONS,
    **BATCH_OPERATIONS,
}
_REF_TEMPLATE: Final = "#/components/schemas/{model}"
#: One event of a stream, as the tools that read these documents take them apart.
_SSE_EVENT: Mapping[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
}
_JSON: Final = "application/json"
_ERRORS: Final[Mapping[Dialect, tuple[str, Any]]] = {
    Dialect.ANTHROPIC: (_JSON, AnthropicError),
    Dialect.OPENAI: (_JSON, OpenAIError),
    Dialect.NATIVE: ("application/problem+json", Problem),
}
_SECURITY_SCHEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
#: What any route may answer, whoever asks: most of it is said before a route is reached.
_COMMON_ERRORS: Final[Mapping[str, str]] = {
    "400": "The request cannot be accepted as it is",
    "403": "The host, the web page or the key may not use this service",
    "405": "The path does not answer this method",
    "408": "The request took too long to arrive",
    "413": "The body is larger than the limit",
    "429": "A limit is reached; Retry-After says when to come back",
    "431": "The head is larger than the limit",
    "500": "Something of ours went wrong",
    "503": "A part of the service is not there just now",
    "default": "Any other failure, in the same shape",
}


def openapi_document(version: str) -> dict[str, Any]:
    """Return the document.

    Args:
        version: Of this software.
    """
    refs, definitions = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for (method, pattern), operation in ALL_OPERATIONS.items():
        paths.setdefault(pattern, {})[method.lower()] = _operation(operation, refs)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "semantic",
            "version": version,
            "description": "One local language model for many agents, as an event-sourced queue.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        # No operation requires them: a service without keys, which is the default, asks for none.
        "components": {"schemas": definitions, "securitySchemes": _SECURITY_SCHEMES},
    }


class _Refs:
    """Schemas of types by identity, since not every type can be hashed."""

    def __init__(self, entries: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
        self._by_id = {id(shape): schema for shape, schema in entries}

    def of(self, shape: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any type that pydantic knows
        """Return the schema of a type."""
        return self._by_id[id(shape)]


def _schemas() -> tuple[_Refs, dict[str, Any]]:
    shapes: list[Any] = [AnthropicError, OpenAIError, Problem, Health]
    for operation in ALL_OPERATIONS.values():
        shapes += [shape for shape in (operation.body, operation.reply) if shape is not None]
    distinct = list({id(shape): shape for shape in shapes}.values())
    schemas, defined = TypeAdapter.json_schemas(
        [(index, "validation", TypeAdapter(shape)) for index, shape in enumerate(distinct)],
        ref_template=_REF_TEMPLATE,
    )
    refs = _Refs((shape, schemas[index, "validation"]) for index, shape in enumerate(distinct))
    return refs, defined.get("$defs", {})


def _operation(operation: Operation, refs: _Refs) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": _responses(operation, refs),
    }
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is not None:
        content = {"schema": refs.of(operation.body), "example": operation.example}
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {operation.body_media: content},
        }
    return described


def _responses(operation: Operation, refs: _Refs) -> dict[str, Any]:
    failures = dict(_COMMON_ERRORS)
    if operation.missing:
        failures["404"] = "There is nothing of that name"
    failures |= {str(code): text for code, text in operation.extra.items() if code >= 400}  # noqa: PLR2004 - HTTP
    responses = {
        code: {"description": text, "content": _error_content(operation, refs)}
        for code, text in failures.items()
    }
    responses |= {
        str(code): {"description": text}
        for code, text in operation.extra.items()
        if code < 400  # noqa: PLR2004 - HTTP
    }
    if operation.reply is Health:
        responses["503"]["content"] = {
            **_error_content(operation, refs),
            _JSON: {"schema": refs.of(Health)},
        }
    responses[str(operation.status)] = _success(operation, refs)
    if operation.ended:
        responses["200"] = _success(operation, refs)
    return dict(sorted(responses.items()))


def _success(operation: Operation, refs: _Refs) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.reply is not None:
        content[_JSON] = {"schema": refs.of(operation.reply)}
    if operation.media is not None:
        content[operation.media] = {"schema": {"type": "string"}}
    if operation.streams:
        content["text/event-stream"] = {"schema": _SSE_EVENT}
    response: dict[str, Any] = {"description": operation.summary, "content": content}
    if operation.links:
        followers = [
            other.id
            for other in ALL_OPERATIONS.values()
            if any(parameter["name"] == "job_id" for parameter in other.parameters)
        ]
        response["links"] = {
            follower: {"operationId": follower, "parameters": {"job_id": "$response.body#/id"}}
            for follower in followers
        }
    return response


def _error_content(operation: Operation, refs: _Refs) -> dict[str, Any]:
    by_type: dict[str, list[Mapping[str, Any]]] = {}
    for dialect in operation.dialects:
        media_type, shape = _ERRORS[dialect]
        by_type.setdefault(media_type, []).append(refs.of(shape))
    return {
        media_type: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
        for media_type, schemas in by_type.items()
    }
