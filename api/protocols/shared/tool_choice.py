"""Tool choice: which tools an answer may, must or must not call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from domain.chat.request import ToolChoice
from domain.errors import InvalidRequest

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
