"""Joining turns so that any chat template can render them; shared by the protocols."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from domain.chat.request import Message

#: Between texts of one turn that the caller sent apart.
PART_BREAK = "\n"
#: Between turns that are joined into one.
TURN_BREAK = "\n\n"


def merge_turns(system: Iterable[str], turns: Iterable[Message]) -> tuple[Message, ...]:
    """Return one leading system turn, then the others with neighbours of one role joined.

    Args:
        system: Texts of the system prompt; empty ones are dropped.
        turns: The conversation. System turns that open it join the system prompt; later ones
            become reminders inside a user turn, since templates take a system turn only first
            and moving them would change every token after the place where they are moved to.
            One of them is moved all the same, from behind the first user turn to before it:
            Claude Code sends its environment there, the same for every question, so sessions
            share it as a prefix, and the question stands last.
    """
    texts = [text for text in system if text]
    settled: list[Message] = []
    moved = False
    for turn in turns:
        if turn.role == "system":
            if not settled:
                texts.extend([turn.content] if turn.content else [])
                continue
            turn = Message(role="user", content=_reminder(turn.content))  # noqa: PLW2901 - replaced
            if not moved and len(settled) == 1 and settled[0].role == "user":
                moved = True
                settled[0] = _joined(turn, settled[0])
                continue
        if settled and _joins(settled[-1], turn):
            settled[-1] = _joined(settled[-1], turn)
        else:
            settled.append(turn)
    if not settled:
        # A template needs something to answer; the caller's system text alone is legal.
        settled.append(Message(role="user", content=""))
    lead = [Message(role="system", content=TURN_BREAK.join(texts))] if texts else []
    return (*lead, *settled)


def _reminder(text: str) -> str:
    return f"<system-reminder>\n{text}\n</system-reminder>"


def _joins(before: Message, turn: Message) -> bool:
    # Results of tools stay apart, each with its call; text after a call is another turn.
    return before.role == turn.role != "tool" and not before.tool_calls


def _joined(before: Message, turn: Message) -> Message:
    return replace(
        before,
        content=_glue(before.content, turn.content),
        reasoning=_glue(before.reasoning, turn.reasoning),
        tool_calls=turn.tool_calls,
        origin="",  # of two answers there is no one
    )


def _glue(first: str, second: str) -> str:
    return TURN_BREAK.join(text for text in (first, second) if text)
