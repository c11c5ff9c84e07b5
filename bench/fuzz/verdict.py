"""Checks the answer to an invalid request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api.errors import dialect_of
from api.http.messages import Dialect

_SERVER_FAILURE = 500


def fault_of(path: str, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
    """Return why an answer is wrong, ``None`` if it is right.

    Wrong are server failures, and client errors without the typed body of their dialect.

    Args:
        path: Path of the request, decoded, without the query.
        status: Status of the answer.
        headers: Headers of the request.
        body: Body of the answer.
    """
    if status >= _SERVER_FAILURE:
        return f"status {status}: {body[:200]!r}"
    if status < 400:
        return None
    try:
        error: Any = json.loads(body)
        typed = _is_typed(error, dialect_of(path, headers), status)
    except (ValueError, LookupError, TypeError):
        typed = False
    return None if typed else f"status {status}, and no error of its dialect: {body[:200]!r}"


def _is_typed(error: Any, dialect: Dialect, status: int) -> bool:
    match dialect:
        case Dialect.ANTHROPIC:
            return error["type"] == "error" and bool(
                error["error"]["message"] and error["request_id"]
            )
        case Dialect.OPENAI:
            return bool(error["error"]["message"] and error["error"]["type"])
        case Dialect.NATIVE:
            return error["status"] == status and bool(error["detail"] and error["code"])
