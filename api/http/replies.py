"""JSON answers."""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping
from typing import Any

from api.http.messages import Reply


def json_reply(
    value: Mapping[str, Any], *, status: int = 200, headers: Mapping[str, str] | None = None
) -> Reply:
    """Return ``value`` as a whole answer."""
    return Reply(status=status, headers=headers or {}, body=json_bytes(value))


def json_bytes(value: Mapping[str, Any]) -> bytes:
    """Return ``value`` as JSON; an ``array`` becomes a list of its numbers.

    Other threads run between two arrays, since Python code runs there: a reply with millions of
    numbers does not stop the event loop.
    """
    text = json.dumps(
        value, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_numbers
    )
    return text.encode("utf-8", "replace")


def _numbers(value: object) -> list[Any]:
    if isinstance(value, array):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")
