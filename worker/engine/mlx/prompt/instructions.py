"""Adds instructions to a request: tool choice and answer format, as text for the model.

The text is appended to the last turn. Everything before it, the tools above all, is the same as
in turns without instructions, so the cached prefix serves them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from domain.chat.request import ChatRequest, Message, canonical_json


def with_instructions(request: ChatRequest, *, is_opened: bool) -> ChatRequest:
    """Return the request with its tool choice and answer format as a final remark.

    Args:
        is_opened: Whether the prompt already opens the call that the request demands.
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
