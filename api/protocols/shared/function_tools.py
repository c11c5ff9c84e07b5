"""Tools in OpenAI's function format, which chat templates read, and the arguments of calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.http.json_body import load_json
from domain.chat.request import canonical_json
from domain.errors import InvalidRequest

_NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


def function_tool(
    name: str, description: str | None, parameters: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return a tool in function format.

    Args:
        name: Name by which the model calls the tool.
        description: Text for the model.
        parameters: JSON schema of the arguments.
    """
    function = {
        "name": name,
        "description": description or "",
        "parameters": parameters or _NO_PARAMETERS,
    }
    return {"type": "function", "function": function}


def function_text(tool: Mapping[str, Any]) -> str:
    """Return the description of a tool that a search has found.

    The text stands in the message that reports the search. The beginning of the prompt, with the
    tools that were known before, stays the same and can be reused from the cache.
    """
    text = canonical_json(tool["function"]).decode(errors="replace")
    return f"<function>{text}</function>"


def arguments_of(text: str) -> Mapping[str, Any]:
    """Return the arguments of a tool call; malformed ones as the member ``unparsed``.

    A malformed call stays in the client's history, so it must not fail every later request.
    """
    try:
        value = load_json(text)
    except InvalidRequest:
        value = None
    return (
        value if isinstance(value, dict) else {"unparsed": text.encode("utf-8", "replace").decode()}
    )
