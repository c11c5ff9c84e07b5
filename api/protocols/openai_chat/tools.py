"""Tools and tool choice of OpenAI chat completions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.protocols.shared.function_tools import function_tool
from api.protocols.shared.tool_choice import Mode, choice_of
from api.schemas.openai_chat import ChatToolChoice, FunctionTool
from domain.chat.request import ToolChoice

_MODES: Final[Mapping[str, Mode]] = {"none": "none", "required": "any"}


def tools_of(tools: Sequence[FunctionTool] | None) -> tuple[Mapping[str, Any], ...]:
    """Return the functions among the tools, in function format."""
    return tuple(
        function_tool(tool.function.name, tool.function.description, tool.function.parameters)
        for tool in tools or ()
        if tool.type == "function" and tool.function is not None
    )


def tool_choice_of(
    spec: str | ChatToolChoice | None, tools: Sequence[Mapping[str, Any]], *, parallel: bool
) -> ToolChoice:
    """Return the tool choice of a request.

    Args:
        spec: ``none``, ``auto``, ``required``, a function or ``allowed_tools``.
        tools: The tools of the request, in function format.
        parallel: Whether one answer may contain several calls.

    Raises:
        InvalidRequest: The request demands a call that no tool can answer.
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
    """Return the names of the tools whose schema the service must enforce."""
    functions = [tool.function for tool in tools or () if tool.function is not None]
    return tuple(function.name for function in functions if function.strict)
