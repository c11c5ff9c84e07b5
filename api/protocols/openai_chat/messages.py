"""OpenAI chat messages as domain messages; native jobs use the same messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from api.protocols.shared.answer_ids import origin_of
from api.protocols.shared.function_tools import arguments_of
from api.protocols.shared.images import (
    IMAGE_NOTE,
    IMAGE_TYPES,
    newest_of_user,
    refuse_images,
)
from api.protocols.shared.turns import PART_BREAK
from api.schemas.openai_chat import (
    ChatMessage,
    ContentPart,
    ToolCallSpec,
)
from domain.chat.request import Message, Role, ToolCall

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def turns_of(messages: Sequence[ChatMessage]) -> Iterator[Message]:
    """Yield chat messages as domain messages.

    Raises:
        InvalidRequest: The newest user message contains an image; see ``shared.images``.
    """
    newest = newest_of_user(message.role for message in messages)
    for number, message in enumerate(messages):
        if number == newest:
            refuse_images(message.content, f"messages.{number}")
        yield _turn(message)


def _turn(message: ChatMessage) -> Message:
    role = _ROLES[message.role]
    return Message(
        role=role,
        content=text_of(message.content),
        reasoning=(message.reasoning_content or "") if role == "assistant" else "",
        tool_calls=_calls(message.tool_calls) if role == "assistant" else (),
        tool_call_id=message.tool_call_id if role == "tool" else None,
        origin=origin_of(call.id for call in message.tool_calls or ()),
    )


def text_of(content: str | Sequence[ContentPart] | None) -> str:
    """Return the text of a content; a note replaces each part that is not text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return PART_BREAK.join(_part_text(part) for part in content)


def _part_text(part: ContentPart) -> str:
    if part.text is not None:
        return part.text
    return IMAGE_NOTE if part.type in IMAGE_TYPES else f"[{part.type} left out]"


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
