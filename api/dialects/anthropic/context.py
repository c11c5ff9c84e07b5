"""Edits of a conversation before it is rendered: ``context_management`` of Messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from api.dialects.anthropic.bodies import (
    AppliedContextEdit,
    ClearThinking,
    ClearToolUses,
    ContextEdit,
)
from domain.chat.request import EDITED_ORIGIN, ChatRequest, Message, ToolCall

#: Returns the length of the prompt of a request in tokens; it may block.
Count = Callable[[ChatRequest], int]
#: What the model sees in the place of a tool result that was cleared.
CLEARED_RESULT: Final = "[This result of a tool was cleared to save room.]"


def edit_context(
    chat: ChatRequest, edits: Sequence[ContextEdit], count: Count
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


def may_edit(chat: ChatRequest, edits: Sequence[ContextEdit]) -> bool:
    """Whether an edit could change a request, whatever the length of its prompt."""
    return any(_edited(chat, edit)[1] for edit in edits)


def _edited(chat: ChatRequest, edit: ContextEdit) -> tuple[ChatRequest, int]:
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
