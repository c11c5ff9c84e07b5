"""Edits of a conversation before it is rendered, and its compaction: Messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from api.dialects.anthropic.bodies import (
    AppliedContextEdit,
    ClearEdit,
    ClearThinking,
    ClearToolUses,
)
from api.dialects.compaction import COMPACT_INSTRUCTION, summary_turn
from api.dialects.parsing import merge_turns
from domain.chat.request import EDITED_ORIGIN, ChatRequest, Message, ToolCall, ToolChoice
from domain.errors import InvalidRequest

#: Returns the length of the prompt of a request in tokens; it may block.
Count = Callable[[ChatRequest], int]
#: What the model sees in the place of a tool result that was cleared.
CLEARED_RESULT: Final = "[This result of a tool was cleared to save room.]"


def edit_context(
    chat: ChatRequest, edits: Sequence[ClearEdit], count: Count
) -> tuple[ChatRequest, list[AppliedContextEdit]]:
    """Return a request after its edits, and the report of those that changed it.

    The prompt is counted only where an edit could change it.
    """
    applied: list[AppliedContextEdit] = []
    for edit in edits:
        after, cleared = _edited(chat, edit)
        if not cleared:
            continue
        before_tokens = count(chat)
        if isinstance(edit, ClearToolUses):
            by_uses = edit.trigger.type == "tool_uses"
            if (len(_calls(chat)) if by_uses else before_tokens) <= edit.trigger.value:
                continue
        tokens = max(0, before_tokens - count(after))
        report: AppliedContextEdit = {"type": edit.type, "cleared_input_tokens": tokens}
        if isinstance(edit, ClearThinking):
            report["cleared_thinking_turns"] = cleared
        else:
            report["cleared_tool_uses"] = cleared
            if edit.clear_at_least is not None and tokens < edit.clear_at_least.value:
                continue
        applied.append(report)
        chat = after
    return chat, applied


def may_edit(chat: ChatRequest, edits: Sequence[ClearEdit]) -> bool:
    """Whether an edit could change a request, whatever the length of its prompt."""
    return any(_edited(chat, edit)[1] for edit in edits)


def has_older_turns(chat: ChatRequest) -> bool:
    """Whether anything but instructions precedes the newest question."""
    return any(turn.role != "system" for turn in _older(chat.messages))


def behind_summary(turns: Sequence[Message], summary: str) -> list[Message]:
    """Return what the model sees of turns that were compacted.

    Instructions stay in words, and so does the newest question.
    """
    older = _older(turns)
    lasting = [turn for turn in older if turn.role == "system"]
    return [*lasting, summary_turn(summary), *turns[len(older) :]]


def _older(turns: Sequence[Message]) -> Sequence[Message]:
    """Return the turns before the newest question, which the last turns of the user are."""
    count = len(turns)
    while count and turns[count - 1].role in ("user", "system"):
        count -= 1
    return turns[:count]


def summarizing(
    chat: ChatRequest, *, added: str | None = None, own: str | None = None
) -> ChatRequest:
    """Return the request for the summary of a conversation: the same prompt with one more turn.

    Args:
        added: Instructions of the client behind those of this service.
        own: Instructions in their place.

    Raises:
        InvalidRequest: The conversation ends with calls whose results are missing.
    """
    if chat.messages[-1].tool_calls:
        msg = "a conversation can be compacted once its last tool calls have their results"
        raise InvalidRequest(msg, field="messages")
    words = (own or "").strip() or "\n\n".join(filter(None, (COMPACT_INSTRUCTION, added)))
    lead = [turn.content for turn in chat.messages if turn.role == "system"]
    turns = [turn for turn in chat.messages if turn.role != "system"]
    return replace(
        chat,
        messages=merge_turns(lead, [*turns, Message(role="user", content=words)]),
        tool_choice=ToolChoice(mode="none"),
        answer_schema=None,
        is_strict=False,
        stop=(),
    )


def _edited(chat: ChatRequest, edit: ClearEdit) -> tuple[ChatRequest, int]:
    if isinstance(edit, ClearThinking):
        return _without_thinking(chat, edit)
    return _without_tool_uses(chat, edit)


def _without_thinking(chat: ChatRequest, edit: ClearThinking) -> tuple[ChatRequest, int]:
    """Return a request with the reasoning of its latest turns only, and the number of others."""
    turns = [place for place, turn in enumerate(chat.messages) if turn.reasoning]
    cleared = turns[: max(0, len(turns) - edit.kept_turns)] if edit.kept_turns is not None else []
    messages = list(chat.messages)
    for place in cleared:
        messages[place] = replace(messages[place], reasoning="", origin=EDITED_ORIGIN)
    return replace(chat, messages=tuple(messages)), len(cleared)


def _without_tool_uses(chat: ChatRequest, edit: ClearToolUses) -> tuple[ChatRequest, int]:
    """Return a request without the results of its older tool uses, and their number."""
    calls = _calls(chat)
    older = calls[: max(0, len(calls) - edit.kept_uses)]
    cleared = {call.id: call.name for call in older if call.name not in (edit.exclude_tools or ())}
    messages = tuple(_cleared(turn, cleared, edit) for turn in chat.messages)
    return replace(chat, messages=messages), len(cleared)


def _calls(chat: ChatRequest) -> list[ToolCall]:
    return [call for turn in chat.messages for call in turn.tool_calls]


def _cleared(turn: Message, cleared: dict[str, str], edit: ClearToolUses) -> Message:
    if turn.tool_call_id in cleared:
        return replace(turn, content=CLEARED_RESULT, images=())
    if not any(call.id in cleared and edit.clears_input(call.name) for call in turn.tool_calls):
        return turn
    calls = tuple(
        replace(call, arguments={}) if call.id in cleared and edit.clears_input(call.name) else call
        for call in turn.tool_calls
    )
    return replace(turn, tool_calls=calls, origin=EDITED_ORIGIN)
