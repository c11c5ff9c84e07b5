"""Turns of a conversation, and the images in them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from domain.chat.request import Message
from domain.errors import InvalidRequest

#: Joins the text parts of one turn.
PART_BREAK = "\n"
#: Joins turns.
TURN_BREAK = "\n\n"


def merge_turns(system: Iterable[str], turns: Iterable[Message]) -> tuple[Message, ...]:
    """Return one leading system turn, then the other turns; adjacent ones of a role are joined.

    Leading system turns join the system prompt. A later system turn becomes a reminder inside a
    user turn: templates accept a system turn only first, and a move to the front would change
    every token after it. One such turn is moved all the same: directly after the first user turn
    it goes before that turn. Claude Code sends its environment there, equal for every question,
    so that sessions share it as a prefix and the question stands last.

    Args:
        system: Texts of the system prompt; empty ones are dropped.
        turns: The conversation.
    """
    texts = [text for text in system if text]
    merged: list[Message] = []
    moved = False
    for turn in turns:
        if turn.role == "system":
            if not merged:
                texts.extend([turn.content] if turn.content else [])
                continue
            turn = Message(role="user", content=_reminder(turn.content))  # noqa: PLW2901 - replaced
            if not moved and len(merged) == 1 and merged[0].role == "user":
                moved = True
                merged[0] = _joined(turn, merged[0])
                continue
        if merged and _joins(merged[-1], turn):
            merged[-1] = _joined(merged[-1], turn)
        else:
            merged.append(turn)
    if not merged:
        # Templates need a user turn; a request with a system text alone is legal.
        merged.append(Message(role="user", content=""))
    lead = [Message(role="system", content=TURN_BREAK.join(texts))] if texts else []
    return (*lead, *merged)


def _reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def _joins(before: Message, turn: Message) -> bool:
    # Each tool result stays with its call, and text after a call is a turn of its own.
    return before.role == turn.role != "tool" and not before.tool_calls


def _joined(before: Message, turn: Message) -> Message:
    return replace(
        before,
        content=_join_texts(before.content, turn.content),
        reasoning=_join_texts(before.reasoning, turn.reasoning),
        tool_calls=turn.tool_calls,
        origin="",  # the joined turn comes from two answers
    )


def _join_texts(first: str, second: str) -> str:
    return TURN_BREAK.join(text for text in (first, second) if text)


IMAGE_NOTE: Final = "[image left out: this model reads text only]"
IMAGE_REFUSED: Final = "this model reads text only: an image cannot be part of the question"
#: Types of parts that are images, in any dialect.
IMAGE_TYPES: Final = frozenset({"image", "image_url", "input_image"})


class TypedPart(Protocol):
    """A part of a content."""

    @property
    def type(self) -> str:
        """Its type in its dialect."""
        ...


def newest_of_user(roles: Iterable[str | None]) -> int:
    """Return the index of the last turn of the user, -1 if there is none."""
    return max((index for index, role in enumerate(roles) if role == "user"), default=-1)


def refuse_images(content: str | Sequence[TypedPart] | None, where: str) -> None:
    """Refuse a question with an image.

    Args:
        content: The newest message of the user.
        where: Its place in the body.

    Raises:
        InvalidRequest: The error names the part.
    """
    if content is None or isinstance(content, str):
        return
    for place, part in enumerate(content):
        if part.type in IMAGE_TYPES:
            raise InvalidRequest(IMAGE_REFUSED, field=f"{where}.content.{place}")
