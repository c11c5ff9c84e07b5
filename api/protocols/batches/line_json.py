"""Lines of a batch as JSON objects."""

from __future__ import annotations

from typing import Any

from api.http.json_body import load_json
from domain.errors import InvalidRequest


def line_object(raw: bytes) -> dict[str, Any]:
    """Return the object that a line holds.

    Raises:
        InvalidRequest: The line is not a JSON object.
    """
    line = load_json(raw)
    if not isinstance(line, dict):
        msg = "a line must be a JSON object"
        raise InvalidRequest(msg)
    return line


def object_or_empty(raw: bytes) -> dict[str, Any]:
    """Return the object that a line holds, an empty one if it holds none."""
    try:
        return line_object(raw)
    except InvalidRequest:
        return {}


def text_member(value: Any, name: str) -> str:  # noqa: ANN401 - any JSON value
    """Return a member that is a text, "" if there is none."""
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
