"""Calls of tools as items of OpenAI's Responses, each in the words of its tool's own type."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.protocols.openai_responses.custom_tools import free_text, is_complete_call
from api.protocols.shared.answer import Block
from api.protocols.shared.function_tools import arguments_of

Kinds = Mapping[str, Mapping[str, str]]

#: What the ids of items begin with.
_PREFIXES: Final[Mapping[str, str]] = {"function": "fc", "custom": "ctc", "tool_search": "tsc"}


_TYPES: Final[Mapping[str, str]] = {
    "function": "function_call",
    "custom": "custom_tool_call",
    "tool_search": "tool_search_call",
}


def call_kind(block: Block, kinds: Kinds) -> str:
    """Return the type of the tool that is called."""
    return kinds[block.name]["kind"] if block.name in kinds else "function"


def is_complete(block: Block, kinds: Kinds) -> bool:
    """Whether a call may be told as complete.

    Half a text is as good a text as any: nothing but this keeps clients from running it.
    """
    is_text = call_kind(block, kinds) == "custom"
    return block.is_whole and (not is_text or is_complete_call(block.text))


def call_prefix(block: Block, kinds: Kinds) -> str:
    """Return what the id of a call's item begins with."""
    return _PREFIXES[call_kind(block, kinds)]


def call_item(block: Block, kinds: Kinds, item_id: str, status: str) -> dict[str, Any]:
    """Return the item of a call.

    Args:
        block: The call.
        kinds: How clients know the tools that are no functions of the name which the model uses.
        item_id: Of the item.
        status: ``in_progress`` before it has said anything.
    """
    kind = call_kind(block, kinds)
    known = kinds.get(block.name, {"name": block.name, "namespace": ""})
    item: dict[str, Any] = {"id": item_id, "type": _TYPES[kind], "call_id": block.id}
    if kind == "tool_search":
        item |= {"execution": "client", "arguments": arguments_of(block.text or "{}")}
    elif kind == "custom":
        text = free_text(block.text)
        item |= {"name": known["name"], "input": text}
    else:
        arguments = block.text or ("{}" if status == "completed" else "")
        item |= {"name": known["name"], "arguments": arguments}
    if known["namespace"]:
        item["namespace"] = known["namespace"]
    return item | {"status": status}
