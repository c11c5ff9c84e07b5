"""Which tool may, must or must not be called; shared by the protocols."""

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
    """Return the choice, once it is known that it can be made.

    Args:
        mode: What the caller says.
        name: The tool of mode ``tool``.
        parallel: Whether one answer may make several calls.
        tools: What may be called, in function format.
        field: Where the caller said it.
        allowed: Names of those that may be called; ``None`` for all.

    Raises:
        InvalidRequest: A call is demanded that nothing can answer.
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
