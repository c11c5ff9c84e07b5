"""The items of OpenAI's Responses: as they are kept, and as the turns of a conversation.

Kept are plain JSON objects in the shape in which they are shown again: messages, calls, results of
calls, and reasoning. Ids of ours in them (``msg_<job>_<n>``) say whose answer they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from api.protocols.openai_chat.messages import text_of
from api.protocols.openai_responses.custom_tools import INPUT
from api.protocols.openai_responses.tools import (
    echoed_tool,
    found_tools_text,
    is_callable,
    model_tool_name,
)
from api.protocols.shared.answer_ids import origin_of
from api.protocols.shared.function_tools import arguments_of
from api.protocols.shared.reasoning_signature import signed_reasoning
from api.protocols.shared.turns import PART_BREAK
from api.schemas.responses import InputItem
from domain.chat.request import Message, Role, ToolCall
from domain.errors import InvalidRequest

Item = Mapping[str, Any]

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
#: Kinds of items that are parts of an answer.
_CALLS: Final = frozenset({"function_call", "custom_tool_call", "tool_search_call"})
_SPOKEN: Final = frozenset({"reasoning", *_CALLS})
_RESULTS: Final = frozenset(
    {"function_call_output", "custom_tool_call_output", "tool_search_output"}
)


def stored_items(items: str | Sequence[InputItem]) -> list[dict[str, Any]]:
    """Return what is kept of an input; references stay, to be resolved from the log.

    Raises:
        InvalidRequest: An item lacks what its type needs.
    """
    if isinstance(items, str):
        return [_message("user", items)]
    kept = (_kept(item, f"input.{index}") for index, item in enumerate(items))
    return [one for one in kept if one is not None]


def item_turns(items: Iterable[Item]) -> list[Message]:
    """Return the turns that items stand for; neighbours from one answer are one turn."""
    turns: list[Message] = []
    said = _AssistantTurn()
    for item in items:
        if _is_spoken(item):
            if said.is_of_another(item):
                turns.extend(said.turn())
                said = _AssistantTurn()
            said.add(item)
            continue
        turns.extend(said.turn())
        said = _AssistantTurn()
        if item["type"] in _RESULTS:
            result = item["output"] if "output" in item else found_tools_text(item["tools"])
            turns.append(Message(role="tool", content=result, tool_call_id=item["call_id"]))
        else:
            turns.append(Message(role=_ROLES[item["role"]], content=_joined(item)))
    turns.extend(said.turn())
    return turns


def found_tools(items: Iterable[Item]) -> list[Mapping[str, Any]]:
    """Return the definitions of tools that searches in a conversation have found."""
    return [
        tool for item in items if item["type"] == "tool_search_output" for tool in item["tools"]
    ]


def listed_items(items: Sequence[Item], names: str) -> list[dict[str, Any]]:
    """Return items as a client lists them: those without an id get one.

    Args:
        items: As they are kept.
        names: What the ids are made of, e.g. the hexadecimal part of a job's id.
    """
    return [_named(item, names, index) for index, item in enumerate(items)]


@dataclass(slots=True)
class _AssistantTurn:
    """A turn of the assistant that is being put together."""

    origin: str = ""
    ids: list[str | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def is_of_another(self, item: Item) -> bool:
        """Whether an item belongs to another answer than what came before."""
        origin = origin_of(_ids(item))
        return bool(origin and self.origin and origin != self.origin)

    def add(self, item: Item) -> None:
        """Take in an item of an answer."""
        self.ids.extend(_ids(item))
        self.origin = self.origin or origin_of(_ids(item))
        if item["type"] == "reasoning":
            self.reasoning.append(_joined(item) or signed_reasoning(item.get("encrypted_content")))
        elif item["type"] in _CALLS:
            self.calls.append(_said_call(item))
        else:
            self.texts.append(_joined(item))

    def turn(self) -> list[Message]:
        """Return the turn, if anything was said."""
        if not self.ids:
            return []
        turn = Message(
            role="assistant",
            content=PART_BREAK.join(filter(None, self.texts)),
            reasoning=PART_BREAK.join(filter(None, self.reasoning)),
            tool_calls=tuple(self.calls),
            origin=origin_of(self.ids),
        )
        return [turn]


def _said_call(item: Item) -> ToolCall:
    kind = item["type"]
    if kind == "function_call":
        arguments = arguments_of(item["arguments"] or "{}")
    else:
        arguments = item["arguments"] if kind == "tool_search_call" else {INPUT: item["input"]}
    name = model_tool_name(item.get("namespace"), item.get("name") or "tool_search")
    return ToolCall(id=item["call_id"], name=name, arguments=arguments)


def _is_spoken(item: Item) -> bool:
    return item["type"] in _SPOKEN or item.get("role") == "assistant"


def _ids(item: Item) -> tuple[str | None, ...]:
    return item.get("id"), item.get("call_id"), item.get("encrypted_content")


def _joined(item: Item) -> str:
    return PART_BREAK.join(part["text"] for part in item["content"])


def _kept(item: InputItem, where: str) -> dict[str, Any] | None:
    kind = item.type or ("message" if item.role else "item_reference")
    if kind == "message":
        role = _needed(item.role, where, "role")
        return _with_id(_message(role, text_of(item.content)), item)
    if kind in _CALLS:
        return _with_id(_call(item, kind, where), item)
    if kind in _RESULTS:
        return _with_id(_result(item, kind, where), item)
    if kind == "reasoning":
        content = text_of(item.content if isinstance(item.content, list) else None)
        thought: dict[str, Any] = {
            "type": kind,
            "summary": [],
            "content": [{"type": "reasoning_text", "text": content}] if content else [],
        }
        if item.encrypted_content:
            thought["encrypted_content"] = item.encrypted_content
        return _with_id(thought, item)
    if kind == "item_reference":
        return {"type": kind, "id": _needed(item.id, where, "id")}
    return None


def _message(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
    else:
        part = {"type": "input_text", "text": text}
    return {"type": "message", "role": role, "status": "completed", "content": [part]}


def _call(item: InputItem, kind: str, where: str) -> dict[str, Any]:
    call_id = _needed(item.call_id, where, "call_id")
    call: dict[str, Any] = {"type": kind, "call_id": call_id, "status": "completed"}
    if kind == "tool_search_call":
        arguments = item.arguments if isinstance(item.arguments, dict) else {}
        return call | {"execution": "client", "arguments": arguments}
    call["name"] = _needed(item.name, where, "name")
    if item.namespace:
        call["namespace"] = item.namespace
    if kind == "custom_tool_call":
        return call | {"input": item.input or ""}
    return call | {"arguments": item.arguments if isinstance(item.arguments, str) else ""}


def _result(item: InputItem, kind: str, where: str) -> dict[str, Any]:
    call_id = _needed(item.call_id, where, "call_id")
    result: dict[str, Any] = {"type": kind, "call_id": call_id, "status": "completed"}
    if kind == "tool_search_output":
        tools = [echoed_tool(tool) for tool in item.tools or () if is_callable(tool)]
        return result | {"execution": "client", "tools": tools}
    output = item.output if isinstance(item.output, str | list) else None
    return result | {"output": text_of(output)}


def _with_id(kept: dict[str, Any], item: InputItem) -> dict[str, Any]:
    return kept | {"id": item.id} if item.id else kept


def _needed(value: str | None, where: str, name: str) -> str:
    if not value:
        msg = "this is needed by an item of its type"
        raise InvalidRequest(msg, field=f"{where}.{name}")
    return value


_PREFIXES: Final[Mapping[str, str]] = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "reasoning": "rs",
}


def _named(item: Item, names: str, index: int) -> dict[str, Any]:
    # The letter keeps it apart from what was answered: nobody said this here.
    return {"id": f"{_PREFIXES[item['type']]}_{names}_i{index}", **item}
