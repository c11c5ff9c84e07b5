"""What the chat template of gpt-oss takes: other messages than the templates of other families.

It takes one call to a message, followed by its result, reasoning as ``thinking`` and only beside a
call, and no text beside both; a tool without a description, or a default that is no text where a
choice has one, makes it fail. Facts: https://huggingface.co/openai/gpt-oss-20b (the template) and
https://github.com/openai/harmony/blob/main/docs/format.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from domain.chat.request import Message, ToolCall

Turn = dict[str, Any]

#: What callers name and the model was not trained on, by the level that comes nearest.
_EFFORTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "none": "low",
        "minimal": "low",
        "low": "low",
        "medium": "medium",
        "high": "high",
        "xhigh": "high",
        "max": "high",
    }
)
#: Keywords beside which the template takes a default for a text.
_CHOICES: Final = ("enum", "oneOf")


def effort_of(wanted: str | None) -> dict[str, str]:
    """Return what the template is told of the effort; nothing leaves it its own default."""
    effort = _EFFORTS.get(wanted or "")
    return {"reasoning_effort": effort} if effort else {}


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Return a conversation in which a turn makes one call, and its result follows at once.

    A result of a call that is not there is said by the user.
    """
    turns: list[Message] = []
    at = 0
    while at < len(messages):
        turn, at = messages[at], at + 1
        results: list[Message] = []
        while turn.tool_calls and at < len(messages) and messages[at].role == "tool":
            results.append(messages[at])
            at += 1
        if not turn.tool_calls:
            turns.append(replace(turn, role="user") if turn.role == "tool" else turn)
            continue
        for number, call in enumerate(turn.tool_calls):
            rest = turn if number == 0 else replace(turn, content="", reasoning="")
            turns.append(replace(rest, tool_calls=(call,)))
            turns += [result for result in results if result.tool_call_id == call.id]
        known = {call.id for call in turn.tool_calls}
        turns += [replace(one, role="user") for one in results if one.tool_call_id not in known]
    return turns


def turn_of(message: Message, call_of: Callable[[ToolCall], Turn]) -> Turn:
    """Return a turn of ``one_call_each`` as the template takes it.

    Args:
        message: The turn.
        call_of: From a call to what templates take.
    """
    turn: Turn = {"role": message.role, "content": message.content}
    if message.tool_calls:
        # The template writes what is said before a call as reasoning anyway.
        reasoning = [part for part in (message.reasoning, message.content) if part]
        turn |= {
            "content": "",
            "thinking": "\n\n".join(reasoning),
            "tool_calls": [call_of(call) for call in message.tool_calls],
        }
    return turn


def tool_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition that the template can write as a type."""
    function = dict(tool["function"])
    function["description"] = function.get("description") or ""
    parameters = function.get("parameters")
    if isinstance(parameters, Mapping) and isinstance(parameters.get("properties"), Mapping):
        properties = {
            name: _with_text_default(one) for name, one in parameters["properties"].items()
        }
        function["parameters"] = {**parameters, "properties": properties}
    return {**tool, "function": function}


def _with_text_default(schema: object) -> object:
    if (
        not isinstance(schema, Mapping)
        or isinstance(schema.get("default", ""), str)
        or not any(schema.get(key) for key in _CHOICES)
    ):
        return schema
    return {**schema, "default": json.dumps(schema["default"], ensure_ascii=False)}
