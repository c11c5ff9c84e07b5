"""The OpenAPI 3.1 document, built from the table of operations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Any, Final, Literal, NotRequired

from pydantic import TypeAdapter
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.errors import dialects_of_path
from api.http.messages import Dialect, json_bytes
from api.http.operation import Operation, Place
from api.operate.health import Health

# --- errors --------------------------------------------------------------------------------


class AnthropicErrorDetail(TypedDict):
    """The type and the message of an error."""

    type: str
    message: str


class AnthropicError(TypedDict):
    """An error in Anthropic's format."""

    type: Literal["error"]
    error: AnthropicErrorDetail
    request_id: str


class OpenAIErrorDetail(TypedDict):
    """The message of an error, its type, and the field that caused it."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(TypedDict):
    """An error in OpenAI's format."""

    error: OpenAIErrorDetail


class OllamaError(TypedDict):
    """An error in Ollama's format."""

    error: str


class Problem(TypedDict):
    """An error as RFC 9457 problem details.

    A conflict with the turn of an agent has the number of its ``turn`` and its open ``job``.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    field: NotRequired[str]
    turn: NotRequired[int]
    job: NotRequired[str | None]


_REF_TEMPLATE: Final = "#/components/schemas/{model}"
#: One event of a stream, in the form that tools for OpenAPI expect.
_SSE_EVENT: Mapping[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
}
_JSON: Final = "application/json"
_ERRORS: Final[Mapping[Dialect, tuple[str, Any]]] = {
    Dialect.ANTHROPIC: (_JSON, AnthropicError),
    Dialect.OPENAI: (_JSON, OpenAIError),
    Dialect.OLLAMA: (_JSON, OllamaError),
    Dialect.NATIVE: ("application/problem+json", Problem),
}
_SECURITY_SCHEMES: Final[Mapping[str, Mapping[str, str]]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
#: Failures of any operation; the server detects most of them before it routes a request.
_COMMON_ERRORS: Final[Mapping[str, str]] = {
    "400": "The request is not valid",
    "401": "The key is missing or is not one of the service's",
    "403": "The host, the web origin or the scope of the key does not allow it",
    "405": "The path does not support this method",
    "408": "The request took too long to arrive",
    "413": "The body is larger than the limit",
    "429": "A limit is reached; Retry-After has the seconds to wait",
    "431": "The header fields are larger than the limit",
    "500": "The service failed",
    "503": "A part of the service is unavailable",
    "507": "The disk is full; new work is refused",
    "default": "Any other failure, in the same format",
}
_FIRST_ERROR: Final = 400


def openapi_document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Return the document.

    Args:
        version: Of this software.
    """
    refs, definitions = _schemas(operations)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _described(operation, refs)
        if operation.has_links:
            described["responses"][str(operation.status)]["links"] = _links(operations)
            if operation.may_be_done:
                described["responses"]["200"]["links"] = _links(operations)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
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
        # No operation requires them: a service without keys, which is the default, checks none.
        "components": {"schemas": definitions, "securitySchemes": _SECURITY_SCHEMES},
    }


class OpenApiDocument:
    """The document as JSON; the first call builds it, which takes half a second of a processor."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._building = Lock()
        self._body: bytes | None = None

    def read(self, operations: Sequence[Operation]) -> bytes:
        """Return the document; safe to call from any thread.

        Args:
            operations: All operations of the API, the same in each call.
        """
        with self._building:
            if self._body is None:
                self._body = json_bytes(openapi_document(operations, self._version))
            return self._body


class _Refs:
    """Schemas of types by identity, since not every type can be hashed."""

    def __init__(self, entries: Iterable[tuple[Any, Mapping[str, Any]]]) -> None:
        self._by_id = {id(shape): schema for shape, schema in entries}

    def of(self, shape: Any) -> Mapping[str, Any]:  # noqa: ANN401 - any type that pydantic knows
        """Return the schema of a type."""
        return self._by_id[id(shape)]


def _schemas(operations: Sequence[Operation]) -> tuple[_Refs, dict[str, Any]]:
    shapes: list[Any] = [AnthropicError, OpenAIError, OllamaError, Problem, Health]
    for operation in operations:
        shapes += [shape for shape in (operation.body, operation.returns) if shape is not None]
    distinct = list({id(shape): shape for shape in shapes}.values())
    schemas, defined = TypeAdapter.json_schemas(
        [(index, "validation", TypeAdapter(shape)) for index, shape in enumerate(distinct)],
        ref_template=_REF_TEMPLATE,
    )
    refs = _Refs((shape, schemas[index, "validation"]) for index, shape in enumerate(distinct))
    return refs, defined.get("$defs", {})


def _described(operation: Operation, refs: _Refs) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": _responses(operation, refs),
        "x-semantic-access": operation.needs.value,
    }
    if operation.parameters:
        described["parameters"] = [parameter.described() for parameter in operation.parameters]
    if operation.body is not None:
        content = {"schema": refs.of(operation.body), "example": operation.example}
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {operation.body_media: content},
        }
    return described


def _responses(operation: Operation, refs: _Refs) -> dict[str, Any]:
    failures = dict(_COMMON_ERRORS)
    if any(parameter.place is Place.PATH for parameter in operation.parameters):
        failures["404"] = "No object has this name"
    others = {str(code): text for code, text in operation.responses.items()}
    failures |= {code: text for code, text in others.items() if int(code) >= _FIRST_ERROR}
    error_content = _error_content(operation, refs)
    responses: dict[str, Any] = {
        code: {"description": text, "content": error_content} for code, text in failures.items()
    }
    for code, text in others.items():
        responses.setdefault(code, {"description": text})
    if operation.returns is Health:
        responses["503"]["content"] = error_content | {_JSON: {"schema": refs.of(Health)}}
    responses[str(operation.status)] = _success(operation, refs)
    if operation.may_be_done:
        responses["200"] = _success(operation, refs)
    return dict(sorted(responses.items()))


def _success(operation: Operation, refs: _Refs) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if (reply := operation.returns) is not None:
        content[_JSON] = {"schema": refs.of(reply)}
    if operation.media is not None:
        content[operation.media] = {"schema": {"type": "string"}}
    if operation.is_streamed:
        content["text/event-stream"] = {"schema": _SSE_EVENT}
    return {"description": operation.summary, "content": content}


def _links(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return links from a new job to the operations that take its id."""
    return {
        operation.id: {
            "operationId": operation.id,
            "parameters": {"job_id": "$response.body#/id"},
        }
        for operation in operations
        if any(parameter.name == "job_id" for parameter in operation.parameters)
    }


def _error_content(operation: Operation, refs: _Refs) -> dict[str, Any]:
    by_type: dict[str, list[Mapping[str, Any]]] = {}
    for dialect in dialects_of_path(operation.path):
        media_type, shape = _ERRORS[dialect]
        by_type.setdefault(media_type, []).append(refs.of(shape))
    return {
        media_type: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}
        for media_type, schemas in by_type.items()
    }
