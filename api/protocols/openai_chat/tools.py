"""Tools and tool choice of OpenAI chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.protocols.shared.tool_choice import Mode, choice_of
from api.schemas.openai_chat import ChatToolChoice, FunctionTool
from domain.chat.request import ToolChoice

_MODES: Final[Mapping[str, Mode]] = {"none": "none", "required": "any"}


def tools_of(tools: Sequence[FunctionTool] | None) -> tuple[Mapping[str, Any], ...]:
    """Return the functions among the tools."""
    return tuple(
        {
            "type": "function",
            "function": {
                "name": tool.function.name,
                "description": tool.function.description or "",
                "parameters": tool.function.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools or ()
        if tool.type == "function" and tool.function is not None
    )


def tool_choice_of(
    spec: str | ChatToolChoice | None, tools: Sequence[Mapping[str, Any]], *, parallel: bool
) -> ToolChoice:
    """Return what the caller says about calling.

    Args:
        spec: ``none``, ``auto``, ``required``, a function or ``allowed_tools``.
        tools: What may be called, in function format.
        parallel: Whether one answer may make several calls.

    Raises:
        InvalidRequest: A call is demanded that nothing can answer.
    """
    mode, name = _MODES.get(spec, "auto") if isinstance(spec, str) else "auto", None
    allowed: tuple[str, ...] | None = None
    if isinstance(spec, ChatToolChoice) and spec.function is not None:
        mode, name = "tool", spec.function.name
    elif isinstance(spec, ChatToolChoice) and spec.allowed_tools is not None:
        mode = _MODES.get(spec.allowed_tools.mode or "", "auto")
        chosen = {one.function.name for one in spec.allowed_tools.tools or () if one.function}
        names = [tool["function"]["name"] for tool in tools]
        allowed = tuple(one for one in names if one in chosen)
    return choice_of(
        mode, name, parallel=parallel, tools=tools, allowed=allowed, field="tool_choice"
    )


def strict_among(tools: Sequence[FunctionTool] | None) -> tuple[str, ...]:
    """Return the names of the tools whose schema must be kept, or the request refused."""
    functions = [tool.function for tool in tools or () if tool.function is not None]
    return tuple(function.name for function in functions if function.strict)
