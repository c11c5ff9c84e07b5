"""Tool calls as items of OpenAI Responses, each in the type of its tool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.protocols.openai_responses.custom_tools import custom_input, is_complete_call
from api.protocols.shared.answer import Block
from api.protocols.shared.function_tools import arguments_of

#: ``kind``, ``name`` and ``namespace`` of tools by the model's names.
ToolKinds = Mapping[str, Mapping[str, str]]

#: Prefixes of the ids of items.
_PREFIXES: Final[Mapping[str, str]] = {"function": "fc", "custom": "ctc", "tool_search": "tsc"}
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
    return _PREFIXES[call_kind(block, kinds)]


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
