"""The table of errors: status, headers and body of each failure, in the dialect of the client."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from api.http.messages import JOB_HEADER, Dialect, Reply
from domain.errors import (
    AgentTurnConflict,
    Conflict,
    DiskFull,
    Failure,
    GenerationCancelled,
    InvalidRequest,
    NotFound,
    Overloaded,
    PromptTooLong,
    SemanticError,
    Unavailable,
)
from domain.values import JobId

#: ``Retry-After`` of an error that has none of its own, in seconds.
RETRY_AFTER_S: Final = 1

_STATUS: Final[Mapping[type[SemanticError], int]] = MappingProxyType(
    {
        InvalidRequest: 400,
        NotFound: 404,
        Conflict: 409,
        GenerationCancelled: 409,
        Overloaded: 429,
        Unavailable: 503,
        DiskFull: 507,
        Failure: 500,
        SemanticError: 500,
    }
)

#: Statuses that the SDKs of other services do not name, and the one that they wait and retry on.
_FOREIGN_STATUS: Final[Mapping[int, int]] = MappingProxyType({507: 503})

# The names that the SDKs and Claude Code distinguish. A status that is not listed falls to its
# class: 4xx is the caller's, 5xx is ours.
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        413: "request_too_large",
        429: "rate_limit_error",
        503: "overloaded_error",
        504: "timeout_error",
        529: "overloaded_error",
    }
)
_OPENAI_TYPES: Final[Mapping[int, str]] = MappingProxyType(
    {
        401: "authentication_error",
        403: "permission_error",
        429: "rate_limit_error",
    }
)

_PARAMETER_CODES: Final[Mapping[type[SemanticError], str]] = MappingProxyType(
    {PromptTooLong: "context_length_exceeded"}
)

_TITLES: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "Bad request",
        401: "Not authenticated",
        403: "Forbidden",
        404: "Not found",
        405: "Method not allowed",
        408: "Request timeout",
        409: "Conflict",
        410: "Gone",
        413: "Content too large",
        415: "Unsupported media type",
        417: "Expectation failed",
        426: "Upgrade required",
        429: "Too many requests",
        431: "Header fields too large",
        500: "Internal error",
        501: "Not implemented",
        503: "Service unavailable",
        504: "Timeout",
        505: "HTTP version not supported",
        507: "Insufficient storage",
        529: "Overloaded",
    }
)

#: Paths of each foreign API; a longer path counts when ``/`` follows.
_ANTHROPIC_PATHS: Final = ("/v1/messages", "/v1/complete")
_OPENAI_PATHS: Final = (
    "/v1/conversations",
    "/v1/chat",
    "/v1/completions",
    "/v1/decisions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/responses",
    "/v1/files",
    "/v1/batches",
)
_OLLAMA_PATHS: Final = ("/api",)
#: Of this service's own API. What else stands below ``/v1`` is a path of the vendors, known or not.
_NATIVE_PATHS: Final = (
    "/v1/agents",
    "/v1/detokenize",
    "/v1/events",
    "/v1/jobs",
    "/v1/jobs:cancel",
    "/v1/jobs:retry",
    "/v1/schedules",
    "/v1/subscriptions",
    "/v1/tokenize",
    "/v1/webhooks",
)
_VERSIONED: Final = ("/v1",)


class TransportError(SemanticError):
    """A request that fails as HTTP, before or beside any meaning.

    Args:
        headers: Further headers that the status asks for, such as ``allow``.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        retryable: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers
        self.retryable = retryable


def dialects_of_path(path: str) -> tuple[Dialect, ...]:
    """Return the error formats of a path; a header decides where there are two.

    Args:
        path: Without the query; need not exist.
    """
    if _is_under(path, _ANTHROPIC_PATHS):
        return (Dialect.ANTHROPIC,)
    if _is_under(path, _OPENAI_PATHS):
        return (Dialect.OPENAI,)
    if _is_under(path, _VERSIONED) and not _is_under(path, _NATIVE_PATHS):
        return (Dialect.OPENAI, Dialect.ANTHROPIC)
    if _is_under(path, _OLLAMA_PATHS):
        return (Dialect.OLLAMA,)
    return (Dialect.NATIVE,)


def internal_error() -> TransportError:
    """A defect of this service, of which the client gets no detail."""
    return TransportError(500, "internal_error", "internal error")


def dialect_of(path: str, headers: Mapping[str, str]) -> Dialect:
    """Return the error format that a client of ``path`` understands.

    Args:
        path: Without the query; need not exist.
        headers: By lower-case name.
    """
    dialects = dialects_of_path(path)
    if len(dialects) > 1 and "anthropic-version" in headers:
        return Dialect.ANTHROPIC
    return dialects[0]


def status_of(error: SemanticError, dialect: Dialect = Dialect.NATIVE) -> int:
    """Return the HTTP status of a failure for the clients of a dialect."""
    if isinstance(error, TransportError):
        return error.status
    # Every class but the root has an entry or inherits one; the nearest ancestor decides.
    status = next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)
    return status if dialect is Dialect.NATIVE else _FOREIGN_STATUS.get(status, status)


def error_type(status: int, dialect: Dialect) -> str:
    """Return the ``type`` that a dialect's error object carries for a status."""
    if dialect is Dialect.ANTHROPIC:
        fallback = "invalid_request_error" if status < 500 else "api_error"  # noqa: PLR2004 - HTTP
        return _ANTHROPIC_TYPES.get(status, fallback)
    fallback = "invalid_request_error" if status < 500 else "server_error"  # noqa: PLR2004 - HTTP
    return _OPENAI_TYPES.get(status, fallback)


def error_body(error: SemanticError, dialect: Dialect, request_id: str) -> dict[str, Any]:
    """Return the JSON object of a failure; streams send it as their last event."""
    status = status_of(error, dialect)
    field = error.field if isinstance(error, InvalidRequest) else None
    named = f"{field}: {error.message}" if field else error.message
    match dialect:
        case Dialect.OLLAMA:
            return {"error": named}
        case Dialect.ANTHROPIC:
            detail = {"type": error_type(status, dialect), "message": named}
            return {"type": "error", "error": detail, "request_id": request_id}
        case Dialect.OPENAI:
            return {
                "error": {
                    "message": error.message,
                    "type": error_type(status, dialect),
                    "param": field,
                    "code": _PARAMETER_CODES.get(type(error), error.code),
                }
            }
        case Dialect.NATIVE:
            return _problem(error, status, field, request_id)


def _problem(
    error: SemanticError, status: int, field: str | None, request_id: str
) -> dict[str, Any]:
    """Return an error as RFC 9457 problem details."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": _TITLES.get(status, "Error"),
        "status": status,
        "detail": error.message,
        "code": error.code,
        "request_id": request_id,
    }
    if field:
        body["field"] = field
    if isinstance(error, AgentTurnConflict):
        body |= {"turn": error.turn, "job": error.job}
    return body


def error_reply(
    error: SemanticError, dialect: Dialect, request_id: str, *, jobs: Sequence[JobId] = ()
) -> Reply:
    """Return the reply to a request that failed; it names the jobs that were accepted before."""
    status = status_of(error, dialect)
    headers = {"x-should-retry": "true" if error.retryable else "false"}
    if jobs:
        headers[JOB_HEADER] = ", ".join(jobs)
    if isinstance(error, TransportError):
        headers.update(error.headers)
    if status in (429, 503, 507, 529):
        after_s = RETRY_AFTER_S
        if isinstance(error, Overloaded | DiskFull):
            after_s = error.retry_after_s
        headers.setdefault("retry-after", str(after_s))
    return Reply(
        status=status,
        headers=headers,
        body=json.dumps(error_body(error, dialect, request_id), ensure_ascii=False).encode(),
        content_type=(
            "application/problem+json" if dialect is Dialect.NATIVE else "application/json"
        ),
    )


def _is_under(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(root + "/") for root in roots)
