"""Items of the Responses API: input and output, and tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from api.answer import Block, origin_of
from api.dialects.function_tools import arguments_of
from api.dialects.openai_chat.parse import text_of
from api.dialects.openai_responses.bodies import InputItem
from api.dialects.openai_responses.tools import (
    INPUT,
    custom_input,
    echoed_tool,
    found_tools_text,
    is_callable,
    is_complete_call,
    model_tool_name,
)
from api.dialects.reasoning_signature import signed_reasoning
from api.dialects.turns import PART_BREAK, newest_of_user, refuse_images
from domain.chat.request import Message, Role, ToolCall
from domain.errors import InvalidRequest

Item = Mapping[str, Any]

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
#: Types of items that an assistant emits.
_CALLS: Final = frozenset({"function_call", "custom_tool_call", "tool_search_call"})
_ASSISTANT_TYPES: Final = frozenset({"reasoning", *_CALLS})
_RESULTS: Final = frozenset(
    {"function_call_output", "custom_tool_call_output", "tool_search_output"}
)
_ADDED: Final = "additional_tools"
#: Types of items that make further tools callable.
_TOOL_LISTS: Final = frozenset({"tool_search_output", _ADDED})


def stored_items(items: str | Sequence[InputItem]) -> list[dict[str, Any]]:
    """Return an input as stored items; references stay unresolved.

    Raises:
        InvalidRequest: An item lacks a field that its type requires, or the newest user message
            contains an image; see ``shared.images``.
    """
    if isinstance(items, str):
        return [_message("user", items)]
    newest = newest_of_user(item.role for item in items)
    if newest >= 0:
        refuse_images(items[newest].content, f"input.{newest}")
    stored = (_stored_item(item, f"input.{index}") for index, item in enumerate(items))
    return [one for one in stored if one is not None]


def item_turns(items: Iterable[Item]) -> list[Message]:
    """Return items as domain messages; adjacent items of one answer become one message."""
    turns: list[Message] = []
    assistant = _AssistantTurn()
    for item in items:
        if _is_from_assistant(item):
            if assistant.is_of_another(item):
                turns.extend(assistant.turn())
                assistant = _AssistantTurn()
            assistant.add(item)
            continue
        turns.extend(assistant.turn())
        assistant = _AssistantTurn()
        if item["type"] in _RESULTS:
            result = item["output"] if "output" in item else found_tools_text(item["tools"])
            turns.append(Message(role="tool", content=result, tool_call_id=item["call_id"]))
        elif item["type"] == _ADDED:
            text = f"Further tools:\n{found_tools_text(item['tools'])}"
            turns.append(Message(role="system", content=text))
        else:
            turns.append(Message(role=_ROLES[item["role"]], content=_joined(item)))
    turns.extend(assistant.turn())
    return turns


def found_tools(items: Iterable[Item]) -> list[Mapping[str, Any]]:
    """Return the definitions of the tools that the items of a conversation add."""
    return [tool for item in items if item["type"] in _TOOL_LISTS for tool in item["tools"]]


def listed_items(items: Sequence[Item], names: str) -> list[dict[str, Any]]:
    """Return items as a reply lists them; an item without an id gets one.

    Args:
        items: Stored items.
        names: Text that makes the ids unique, e.g. the hexadecimal part of a job's id.
    """
    return [_with_own_id(item, names, index) for index, item in enumerate(items)]


@dataclass(slots=True)
class _AssistantTurn:
    """A message of the assistant under construction."""

    origin: str = ""
    ids: list[str | None] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)

    def is_of_another(self, item: Item) -> bool:
        """Whether an item comes from another answer than the items before it."""
        origin = origin_of(_ids(item))
        return bool(origin and self.origin and origin != self.origin)

    def add(self, item: Item) -> None:
        """Append an item."""
        self.ids.extend(_ids(item))
        self.origin = self.origin or origin_of(_ids(item))
        if item["type"] == "reasoning":
            self.reasoning.append(_joined(item) or signed_reasoning(item.get("encrypted_content")))
        elif item["type"] in _CALLS:
            self.calls.append(_tool_call(item))
        else:
            self.texts.append(_joined(item))

    def turn(self) -> list[Message]:
        """Return the message, none without items."""
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


def _tool_call(item: Item) -> ToolCall:
    kind = item["type"]
    if kind == "function_call":
        arguments = arguments_of(item["arguments"] or "{}")
    else:
        arguments = item["arguments"] if kind == "tool_search_call" else {INPUT: item["input"]}
    name = model_tool_name(item.get("namespace"), item.get("name") or "tool_search")
    return ToolCall(id=item["call_id"], name=name, arguments=arguments)


def _is_from_assistant(item: Item) -> bool:
    return item["type"] in _ASSISTANT_TYPES or item.get("role") == "assistant"


def _ids(item: Item) -> tuple[str | None, ...]:
    return item.get("id"), item.get("call_id"), item.get("encrypted_content")


def _joined(item: Item) -> str:
    return PART_BREAK.join(part["text"] for part in item["content"])


def _stored_item(item: InputItem, where: str) -> dict[str, Any] | None:
    kind = item.type or ("message" if item.role else "item_reference")
    if kind == "item_reference":
        return {"type": kind, "id": _required(item.id, where, "id")}
    stored = _stored_fields(item, kind, where)
    return None if stored is None else _with_id(stored, item)


def _stored_fields(item: InputItem, kind: str, where: str) -> dict[str, Any] | None:
    if kind == "message":
        return _message(_required(item.role, where, "role"), text_of(item.content))
    if kind in _CALLS:
        return _call(item, kind, where)
    if kind in _RESULTS:
        return _result(item, kind, where)
    if kind == "reasoning":
        content = text_of(item.content if isinstance(item.content, list) else None)
        reasoning: dict[str, Any] = {
            "type": kind,
            "summary": [],
            "content": [{"type": "reasoning_text", "text": content}] if content else [],
        }
        if item.encrypted_content:
            reasoning["encrypted_content"] = item.encrypted_content
        return reasoning
    if kind == _ADDED and (tools := _callable(item)):
        return {"type": kind, "role": item.role or "developer", "tools": tools}
    return None


def _message(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": []}
    else:
        part = {"type": "input_text", "text": text}
    return {"type": "message", "role": role, "status": "completed", "content": [part]}


def _call(item: InputItem, kind: str, where: str) -> dict[str, Any]:
    call_id = _required(item.call_id, where, "call_id")
    call: dict[str, Any] = {"type": kind, "call_id": call_id, "status": "completed"}
    if kind == "tool_search_call":
        arguments = item.arguments if isinstance(item.arguments, dict) else {}
        return call | {"execution": "client", "arguments": arguments}
    call["name"] = _required(item.name, where, "name")
    if item.namespace:
        call["namespace"] = item.namespace
    if kind == "custom_tool_call":
        return call | {"input": item.input or ""}
    return call | {"arguments": item.arguments if isinstance(item.arguments, str) else ""}


def _result(item: InputItem, kind: str, where: str) -> dict[str, Any]:
    call_id = _required(item.call_id, where, "call_id")
    result: dict[str, Any] = {"type": kind, "call_id": call_id, "status": "completed"}
    if kind == "tool_search_output":
        return result | {"execution": "client", "tools": _callable(item)}
    output = item.output if isinstance(item.output, str | list) else None
    return result | {"output": text_of(output)}


def _callable(item: InputItem) -> list[dict[str, Any]]:
    return [echoed_tool(tool) for tool in item.tools or () if is_callable(tool)]


def _with_id(stored: dict[str, Any], item: InputItem) -> dict[str, Any]:
    return stored | {"id": item.id} if item.id else stored


def _required(value: str | None, where: str, name: str) -> str:
    if not value:
        msg = "an item of this type needs this field"
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
    _ADDED: "at",
    "reasoning": "rs",
}


def _with_own_id(item: Item, names: str, index: int) -> dict[str, Any]:
    # The letter i separates these ids from the ids of answers.
    return {"id": f"{_PREFIXES[item['type']]}_{names}_i{index}", **item}


#: ``kind``, ``name`` and ``namespace`` of tools by the model's names.
ToolKinds = Mapping[str, Mapping[str, str]]

#: Prefixes of the ids of items.
_CALL_PREFIXES: Final[Mapping[str, str]] = {"function": "fc", "custom": "ctc", "tool_search": "tsc"}
_TYPES: Final[Mapping[str, str]] = {
    "function": "function_call",
    "custom": "custom_tool_call",
    "tool_search": "tool_search_call",
}


def call_kind(block: Block, kinds: ToolKinds) -> str:
    """Return the kind of the called tool."""
    return kinds[block.name]["kind"] if block.name in kinds else "function"


def is_complete(block: Block, kinds: ToolKinds) -> bool:
    """Whether the status of a call is ``completed``.

    A client cannot recognise the truncated text of a custom tool, so the status is its only sign.
    """
    is_text = call_kind(block, kinds) == "custom"
    return block.is_whole and (not is_text or is_complete_call(block.text))


def call_prefix(block: Block, kinds: ToolKinds) -> str:
    """Return the prefix of the id of a call's item."""
    return _CALL_PREFIXES[call_kind(block, kinds)]


def call_item(block: Block, kinds: ToolKinds, item_id: str, status: str) -> dict[str, Any]:
    """Return the item of a call.

    Args:
        block: The call.
        kinds: Kinds, names and namespaces of tools by the model's names; see ``ResponseTools``.
        status: Status of the item.
    """
    kind = call_kind(block, kinds)
    known = kinds.get(block.name, {"name": block.name, "namespace": ""})
    item: dict[str, Any] = {"id": item_id, "type": _TYPES[kind], "call_id": block.id}
    if kind == "tool_search":
        item |= {"execution": "client", "arguments": arguments_of(block.text or "{}")}
    elif kind == "custom":
        item |= {"name": known["name"], "input": custom_input(block.text)}
    else:
        arguments = block.text or ("{}" if status == "completed" else "")
        item |= {"name": known["name"], "arguments": arguments}
    if known["namespace"]:
        item["namespace"] = known["namespace"]
    return item | {"status": status}
