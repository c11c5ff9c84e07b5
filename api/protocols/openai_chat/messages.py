"""OpenAI's messages and tools as domain values; native jobs speak them too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from api.http.json_body import load_json
from api.protocols.shared.answer_ids import origin_of
from api.protocols.shared.tool_choice import Mode, choice_of
from api.protocols.shared.turns import PART_BREAK
from api.schemas.openai_chat import (
    ChatMessage,
    ChatToolChoice,
    ContentPart,
    FunctionTool,
    ResponseFormat,
    ToolCallSpec,
)
from domain.chat.request import Message, Role, ToolCall, ToolChoice
from domain.errors import InvalidRequest

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_MODES: Final[Mapping[str, Mode]] = {"none": "none", "required": "any"}


def turn_of(message: ChatMessage) -> Message:
    """Return the turn that a message stands for."""
    role = _ROLES[message.role]
    return Message(
        role=role,
        content=text_of(message.content),
        reasoning=(message.reasoning_content or "") if role == "assistant" else "",
        tool_calls=_calls(message.tool_calls) if role == "assistant" else (),
        tool_call_id=message.tool_call_id if role == "tool" else None,
        origin=origin_of(call.id for call in message.tool_calls or ()),
    )


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


def answer_schema_of(wanted: ResponseFormat | None) -> Mapping[str, Any] | None:
    """Return the schema that the answer is to match, an empty one for any object."""
    if wanted is None or wanted.type not in ("json_object", "json_schema"):
        return None
    schema = wanted.json_schema.json_schema if wanted.json_schema is not None else None
    return (schema or {}) if wanted.type == "json_schema" else {}


def is_strict(wanted: ResponseFormat | None) -> bool:
    """Whether the caller would rather have an error than an answer that may miss the schema."""
    return wanted is not None and wanted.json_schema is not None and bool(wanted.json_schema.strict)


def strict_among(tools: Sequence[FunctionTool] | None) -> tuple[str, ...]:
    """Return the names of the tools whose schema must be kept, or the request refused."""
    functions = [tool.function for tool in tools or () if tool.function is not None]
    return tuple(function.name for function in functions if function.strict)


def text_of(content: str | Sequence[ContentPart] | None) -> str:
    """Return the texts of a content; a note stands for what is no text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return PART_BREAK.join(_part_text(part) for part in content)


def _part_text(part: ContentPart) -> str:
    return part.text if part.text is not None else f"[{part.type} left out]"


def _calls(calls: Sequence[ToolCallSpec] | None) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(
            id=call.id or "",
            name=call.function.name,
            arguments=arguments_of(call.function.arguments or "{}"),
        )
        for call in calls or ()
        if call.function is not None
    )


def arguments_of(text: str) -> Mapping[str, Any]:
    """Return the arguments of a past call; what a model once garbled must not spoil the session."""
    try:
        value = load_json(text)
    except InvalidRequest:
        value = None
    return (
        value if isinstance(value, dict) else {"unparsed": text.encode("utf-8", "replace").decode()}
    )
