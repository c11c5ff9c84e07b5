"""What an answer to a bad request may be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from api.errors import dialect_of
from api.http.messages import Dialect

_SERVER_FAILURE = 500


def fault_of(path: str, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
    """Return what is wrong with an answer, if anything: a failure of ours, or an untyped refusal.

    Args:
        path: That was asked, decoded, without the query.
        status: Of the answer.
        headers: Of the request.
        body: Of the answer.
    """
    if status >= _SERVER_FAILURE:
        return f"status {status}: {body[:200]!r}"
    if status < 400:
        return None
    try:
        said: Any = json.loads(body)
        typed = _is_typed(said, dialect_of(path, headers), status)
    except (ValueError, LookupError, TypeError):
        typed = False
    return None if typed else f"status {status}, and no error of its dialect: {body[:200]!r}"


def _is_typed(said: Any, dialect: Dialect, status: int) -> bool:
    match dialect:
        case Dialect.ANTHROPIC:
            return said["type"] == "error" and bool(said["error"]["message"] and said["request_id"])
        case Dialect.OPENAI:
            return bool(said["error"]["message"] and said["error"]["type"])
        case Dialect.NATIVE:
            return said["status"] == status and bool(said["detail"] and said["code"])
