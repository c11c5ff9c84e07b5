"""Tools of functions, and the choice among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from api.http.json_body import load_json
from domain.chat.request import ToolChoice, canonical_json
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


Mode = Literal["auto", "none", "any", "tool"]


def choice_of(
    mode: Mode,
    name: str | None,
    *,
    parallel: bool,
    tools: Sequence[Mapping[str, Any]],
    field: str,
    allowed: tuple[str, ...] | None = None,
) -> ToolChoice:
    """Return the choice after checking that the tools can satisfy it.

    Args:
        mode: Mode of the request.
        name: The tool of mode ``tool``.
        parallel: Whether one answer may contain several calls.
        tools: The tools of the request, in function format.
        field: Field of the request that errors name.
        allowed: Names of the tools that may be called; ``None`` for all.

    Raises:
        InvalidRequest: The request demands a call that no tool can answer.
    """
    if mode == "tool" and name not in {tool["function"]["name"] for tool in tools}:
        msg = f"there is no tool {name!r} among the tools"
        raise InvalidRequest(msg, field=field)
    if mode == "any" and not (tools if allowed is None else allowed):
        msg = "a call is demanded, but there are no tools"
        raise InvalidRequest(msg, field=field)
    return ToolChoice(
        mode=mode, name=name if mode == "tool" else None, parallel=parallel, allowed=allowed
    )
