"""Converts messages and tools to the form that the chat template of gpt-oss takes.

Its turns hold at most one call, followed by that call's result. Reasoning is ``thinking`` and is
allowed only beside a call, where there is no other text. The template fails on a tool without a
description, and on a default that is not a string for a property with choices. Sources:
https://huggingface.co/openai/gpt-oss-20b (the template) and
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

#: The trained effort level that is nearest to each level of the API.
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
#: Schema keywords beside which the template requires a default that is a string.
_CHOICES: Final = ("enum", "oneOf")


def effort_of(wanted: str | None) -> dict[str, str]:
    """Return the template's effort argument; empty leaves the template's default."""
    effort = _EFFORTS.get(wanted or "")
    return {"reasoning_effort": effort} if effort else {}


def one_call_each(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation with one call in each turn, followed at once by its result.

    A result whose call is missing becomes a user message.
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
    """Return a turn of ``one_call_each`` in the template's form."""
    turn: Turn = {"role": message.role, "content": message.content}
    if message.tool_calls:
        # The template renders text before a call as reasoning anyway.
        reasoning = [part for part in (message.reasoning, message.content) if part]
        turn |= {
            "content": "",
            "thinking": "\n\n".join(reasoning),
            "tool_calls": [call_of(call) for call in message.tool_calls],
        }
    return turn


def tool_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool definition that the template can render."""
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
