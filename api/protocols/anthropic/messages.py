"""Anthropic messages and content blocks as domain messages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from api.protocols.anthropic.tools import AnthropicTools
from api.protocols.shared.answer_ids import origin_of
from api.protocols.shared.images import IMAGE_NOTE, newest_of_user, refuse_images
from api.protocols.shared.reasoning_signature import signed_reasoning
from api.protocols.shared.turns import PART_BREAK
from api.schemas.anthropic import ContentBlock, InputMessage
from domain.chat.request import Message, ToolCall

#: First line of Claude Code's system prompt. It changes with every request, so the cache could not
#: reuse any prefix of the prompt.
BILLING_PREFIX: Final = "x-anthropic-billing-header:"
#: Claude Code appends a line of this shape with its remaining budget to every request.
_COUNTER_TAG: Final = "<total_tokens>"
_COUNTER: Final = re.compile(r"\s*<total_tokens>[\d,]+ tokens left</total_tokens>\s*")
#: Beginnings of tool results that already report an error.
_ERROR_PREFIXES: Final = ("error", "<error", "<tool_use_error")


def system_texts(system: str | Sequence[ContentBlock] | None) -> list[str]:
    """Return the texts of the system prompt without billing lines and counters."""
    if system is None:
        return []
    texts = [system] if isinstance(system, str) else [block_text(block) for block in system]
    return [kept for kept in map(_without_volatile_lines, texts) if kept]


def message_turns(messages: Sequence[InputMessage], toolbox: AnthropicTools) -> Iterator[Message]:
    """Yield the messages as domain messages; each tool result is a message of its own.

    Args:
        messages: The conversation.
        toolbox: Describes the tools that results refer to.

    Raises:
        InvalidRequest: The newest user message contains an image. A note replaces an image in an
            earlier message or in a tool result, so that the conversation can go on.
    """
    newest = newest_of_user(message.role for message in messages)
    for number, message in enumerate(messages):
        if number == newest:
            refuse_images(message.content, f"messages.{number}")
        yield from _turns(message, toolbox)


def block_text(block: ContentBlock) -> str:
    """Return the text of a block; a note replaces a block without text."""
    if block.type in ("text", "thinking"):
        return (block.text if block.type == "text" else block.thinking) or ""
    if block.type == "image":
        return IMAGE_NOTE
    if block.type == "document":
        return _document_text(block)
    if block.type == "redacted_thinking":
        return ""
    found = block.text or _text_in(block.content)
    return found or f"[{_label(block)} left out]"


def _turns(message: InputMessage, toolbox: AnthropicTools) -> Iterator[Message]:
    content = message.content
    if message.role == "system":
        if text := PART_BREAK.join(system_texts(content)):
            yield Message(role="system", content=text)
    elif isinstance(content, str):
        yield Message(role=message.role, content=content)
    elif message.role == "assistant":
        yield _assistant_turn(content)
    else:
        yield from _user_turns(content, toolbox)


def _assistant_turn(blocks: Sequence[ContentBlock]) -> Message:
    return Message(
        role="assistant",
        content=PART_BREAK.join(
            block_text(block)
            for block in blocks
            if block.type not in ("tool_use", "thinking", "redacted_thinking")
        ),
        reasoning=PART_BREAK.join(filter(None, map(_reasoning, blocks))),
        tool_calls=tuple(
            ToolCall(id=block.id or "", name=block.name or "", arguments=block.input or {})
            for block in blocks
            if block.type == "tool_use"
        ),
        origin=origin_of(
            one for block in blocks for one in (block.id, block.signature, block.data)
        ),
    )


def _reasoning(block: ContentBlock) -> str:
    """Return the reasoning of a block, also if the client received it in a signature only."""
    if block.type == "thinking":
        return block.thinking or signed_reasoning(block.signature)
    return signed_reasoning(block.data) if block.type == "redacted_thinking" else ""


def _user_turns(blocks: Sequence[ContentBlock], toolbox: AnthropicTools) -> Iterator[Message]:
    texts: list[str] = []
    yielded = False
    for block in blocks:
        if block.type != "tool_result":
            texts.append(block_text(block))
            continue
        if texts:
            yield Message(role="user", content=PART_BREAK.join(texts))
            texts = []
        yielded = True
        result = _result_text(block, toolbox)
        yield Message(role="tool", content=result, tool_call_id=block.tool_use_id)
    if texts or not yielded:
        yield Message(role="user", content=PART_BREAK.join(texts))


def _result_text(block: ContentBlock, toolbox: AnthropicTools) -> str:
    text = _text_in(block.content, toolbox)
    if block.is_error and not text.lower().startswith(_ERROR_PREFIXES):
        return f"Error: {text}"
    return text


def _text_in(content: Any, toolbox: AnthropicTools | None = None) -> str:  # noqa: ANN401 - any JSON
    """Return the text of a block's content: a text, a block or a list of either."""
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping):
        return _member_text(content, toolbox)
    if isinstance(content, list):
        return PART_BREAK.join(_text_in(member, toolbox) for member in content)
    return ""


def _member_text(member: Mapping[str, Any], toolbox: AnthropicTools | None) -> str:
    if member.get("type") == "image":
        return IMAGE_NOTE
    if member.get("type") == "tool_reference" and toolbox is not None:
        return toolbox.description(member.get("tool_name"))
    for key in ("text", "tool_name", "data", "content", "title"):
        value = member.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list):
            return _text_in(value, toolbox)
    return f"[{member.get('type', 'content')} left out]"


def _document_text(block: ContentBlock) -> str:
    source = block.source if isinstance(block.source, Mapping) else {}
    text = source.get("data") if source.get("type") == "text" else _text_in(source.get("content"))
    return text if isinstance(text, str) and text else f"[{_label(block)} left out]"


def _label(block: ContentBlock) -> str:
    return " ".join(part for part in (block.type, block.name or block.title) if part)


def _without_volatile_lines(text: str) -> str:
    """Return a system text without the lines that change with every request."""
    if BILLING_PREFIX not in text and _COUNTER_TAG not in text:
        return text
    kept = "\n".join(
        line
        for line in text.split("\n")
        if not line.startswith(BILLING_PREFIX) and not _COUNTER.fullmatch(line)
    )
    return kept if kept.strip() else ""
