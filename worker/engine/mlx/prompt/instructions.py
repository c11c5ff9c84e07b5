"""What a request asks for beside its messages, said in words where the model has no other way.

The words stand at the very end of the last turn: everything before it, the tools above all, stays
as it is in the turns that ask for nothing, so that its computed prefix serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from domain.chat.request import ChatRequest, Message, canonical_json


def with_instructions(request: ChatRequest, *, is_opened: bool) -> ChatRequest:
    """Return the request with what it asks for as a last remark.

    Args:
        request: Any.
        is_opened: Whether the prompt begins the call that must be made.
    """
    remarks = [remark for remark in (_on_tools(request, is_opened), _on_form(request)) if remark]
    if not remarks:
        return request
    text = "<system-reminder>\n" + "\n".join(remarks) + "\n</system-reminder>"
    last = request.messages[-1]
    if last.role == "assistant":
        return replace(request, messages=(*request.messages, Message(role="user", content=text)))
    content = f"{last.content}\n\n{text}" if last.content else text
    return replace(request, messages=(*request.messages[:-1], replace(last, content=content)))


def _on_tools(request: ChatRequest, is_opened: bool) -> str:  # noqa: FBT001 - private
    choice = request.tool_choice
    if choice.allowed is not None:
        return f"Of the tools, call none but these: {', '.join(choice.allowed) or 'none'}."
    if is_opened or not (request.tools or request.deferred_tools):
        return ""
    match choice.mode:
        case "none":
            return "Answer in words. Do not call any tool."
        case "any":
            return "Answer with a call of one of the tools."
        case "tool":
            return f"Answer with a call of the tool {choice.name}."
        case "auto":
            return ""


def _on_form(request: ChatRequest) -> str:
    schema: Mapping[str, Any] | None = request.answer_schema
    if schema is None:
        return ""
    if not schema:
        return "Answer with one JSON object and nothing else."
    text = canonical_json(dict(schema)).decode(errors="replace")
    return f"Answer with nothing but JSON that matches this JSON schema: {text}"
