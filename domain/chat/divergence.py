"""Where a prompt leaves what was read before, and answers that come back unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from domain.chat.generation import EmittedCall
from domain.chat.request import (
    ChatRequest,
    Message,
    RawPrompt,
    ToolCall,
    canonical_json,
    unattributed,
)
from domain.chat.stored_answer import StoredAnswer
from domain.values import Digest, JobId, PromptEncoding, StopReason

#: Characters of each excerpt, and how many of them precede the difference.
EXCERPT_CHARS: Final = 60
_LEAD_CHARS: Final = 16


class Cause(StrEnum):
    """Why a prompt differs from an earlier one."""

    MODEL_CHANGED = "model_changed"
    THINKING_TOGGLED = "thinking_toggled"
    EFFORT_CHANGED = "effort_changed"
    TOOL_ADDED = "tool_added"
    TOOL_REMOVED = "tool_removed"
    TOOL_EDITED = "tool_edited"
    TOOLS_REORDERED = "tools_reordered"
    SYSTEM_CHANGED = "system_changed"
    OTHER_CONVERSATION = "other_conversation"
    HISTORY_EDITED = "history_edited"
    HISTORY_CUT = "history_cut"
    ANSWER_REWRITTEN = "answer_rewritten"
    OTHER_TEXT = "other_text"
    BLOCKS_GONE = "blocks_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDivergence:
    """The first difference.

    Attributes:
        place: Place in the newer request, e.g. ``tools[2] Bash`` or ``messages[4] user``.
        before: Excerpt of the earlier request at that place.
        now: Excerpt of the newer request there.
    """

    cause: Cause
    place: str
    before: str = ""
    now: str = ""


def find_divergence(
    before: ChatRequest, now: ChatRequest, *, answered_by: str, same_agent: bool = False
) -> PromptDivergence | None:
    """Return where ``now`` differs from ``before`` and its answer, ``None`` if it continues them.

    Args:
        answered_by: The job that answered ``before``.
        same_agent: Whether both are of one agent: a shorter conversation of the same agent that
            begins with another text is the result of a compaction.
    """
    if before.raw is not None or now.raw is not None:
        return _in_raw(before.raw, now.raw)
    if before.thinking != now.thinking:
        return PromptDivergence(cause=Cause.THINKING_TOGGLED, place="thinking")
    return (
        _in_tools(before.tools, now.tools)
        or _in_messages(
            unattributed(before.messages), unattributed(now.messages), same_agent=same_agent
        )
        or _in_answer(before, now, answered_by)
        or _in_effort(before, now)
    )


def shared_parts(before: ChatRequest, now: ChatRequest) -> int:
    """Return how many leading parts two requests share: tools, then messages.

    For raw prompts, the number of leading characters or ids.
    """
    if before.raw is not None or now.raw is not None:
        return _common(*map(_parts, (before.raw, now.raw)))
    tools = _common(before.tools, now.tools)
    if tools < max(len(before.tools), len(now.tools)):
        return tools
    return tools + _common(unattributed(before.messages), unattributed(now.messages))


def _in_raw(before: RawPrompt | None, now: RawPrompt | None) -> PromptDivergence | None:
    old, new = _parts(before), _parts(now)
    at = _common(old, new)
    if old and at == len(old):
        return None
    texts = (one if isinstance(one, str) else "" for one in (old, new))
    return _divergence_at(Cause.OTHER_TEXT, f"prompt[{at}]", *texts)


def _parts(raw: RawPrompt | None) -> str | Sequence[int]:
    if raw is None:
        return ""
    return raw.ids or raw.text


def _in_tools(
    before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]
) -> PromptDivergence | None:
    at = _common(before, now)
    if at == len(before) == len(now):
        return None
    old, new = [_name(tool) for tool in before], [_name(tool) for tool in now]
    if at >= len(now) or (at < len(before) and old[at] not in new):
        return PromptDivergence(cause=Cause.TOOL_REMOVED, place=f"tools[{at}] {old[at]}")
    place = f"tools[{at}] {new[at]}"
    if at >= len(before) or new[at] not in old:
        return PromptDivergence(cause=Cause.TOOL_ADDED, place=place)
    if old[at] != new[at]:
        return PromptDivergence(
            cause=Cause.TOOLS_REORDERED, place=place, before=old[at], now=new[at]
        )
    texts = (canonical_json(dict(tool)).decode(errors="replace") for tool in (before[at], now[at]))
    return _divergence_at(Cause.TOOL_EDITED, place, *texts)


def _in_effort(before: ChatRequest, now: ChatRequest) -> PromptDivergence | None:
    # Checked last: only some templates render it, at the very beginning of the prompt.
    if before.effort == now.effort:
        return None
    return PromptDivergence(
        cause=Cause.EFFORT_CHANGED,
        place="effort",
        before=before.effort or "",
        now=now.effort or "",
    )


def _in_messages(
    before: Sequence[Message], now: Sequence[Message], *, same_agent: bool
) -> PromptDivergence | None:
    at = _common(before, now)
    if at == len(before):
        return None
    if at >= len(now):
        return PromptDivergence(
            cause=Cause.HISTORY_CUT, place=f"messages[{at}]", before=_excerpt(_text(before[at]), 0)
        )
    old, new = before[at], now[at]
    place = "system" if new.role == "system" else f"messages[{at}] {new.role}"
    is_shorter = len(now) < len(before)
    is_first = at == (before[0].role == "system")
    if "system" in (old.role, new.role):
        cause = Cause.SYSTEM_CHANGED
    elif is_first and old.role == new.role == "user" and not (same_agent and is_shorter):
        cause = Cause.OTHER_CONVERSATION
    elif is_shorter:
        cause = Cause.HISTORY_CUT
    else:
        cause = Cause.HISTORY_EDITED
    return _divergence_at(cause, place, _text(old), _text(new))


def _in_answer(before: ChatRequest, now: ChatRequest, answered_by: str) -> PromptDivergence | None:
    at = len(before.messages)
    if at >= len(now.messages) - 1:
        return None
    turn = now.messages[at]
    if turn.role == "assistant" and turn.origin == answered_by:
        return None
    place = f"messages[{at}] {turn.role}"
    return PromptDivergence(cause=Cause.ANSWER_REWRITTEN, place=place, now=_excerpt(_text(turn), 0))


def _divergence_at(cause: Cause, place: str, before: str, now: str) -> PromptDivergence:
    at = _common(before, now)
    return PromptDivergence(
        cause=cause, place=place, before=_excerpt(before, at), now=_excerpt(now, at)
    )


def _excerpt(text: str, at: int) -> str:
    begin = max(0, at - _LEAD_CHARS)
    shown = text[begin : begin + EXCERPT_CHARS]
    return ("…" if begin else "") + shown + ("…" if begin + EXCERPT_CHARS < len(text) else "")


def _text(turn: Message) -> str:
    calls = "".join(
        f"[{call.name} {canonical_json(dict(call.arguments)).decode(errors='replace')}]"
        for call in turn.tool_calls
    )
    return turn.reasoning + turn.content + calls


def _name(tool: Mapping[str, Any]) -> str:
    return str(tool.get("function", {}).get("name", ""))


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


#: Stop reasons after which the sampled tokens are exactly the turn.
WHOLE: Final = frozenset({StopReason.END_TURN, StopReason.MAX_TOKENS})
#: Keys under which clients return arguments that are no JSON.
_UNPARSED_KEYS: Final = ("unparsed", "__unparsedToolInput")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedAnswer:
    """A complete answer in the log.

    Attributes:
        fingerprint: Fingerprint of the model; the token ids are valid for this model only.
    """

    job_id: JobId
    request: Digest
    fingerprint: str
    answer: StoredAnswer
    encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The sampled ids, without stop tokens."""
        assert self.answer.token_ids is not None, "an answer without ids is not recorded"
        return self.answer.token_ids


def is_echo(turn: Message, answer: StoredAnswer) -> bool:
    """Whether an assistant turn is an echo of an answer."""
    if _bare(turn.content) != _bare(answer.text):
        return False
    if turn.reasoning and _bare(turn.reasoning) != _bare(answer.thinking):
        return False
    return len(turn.tool_calls) == len(answer.calls) and all(
        _is_same_call(echoed, call)
        for echoed, call in zip(turn.tool_calls, answer.calls, strict=True)
    )


def _bare(text: str) -> str:
    return "".join(text.split())


def _is_same_call(echoed: ToolCall, emitted: EmittedCall) -> bool:
    if echoed.name != emitted.name or (echoed.id and echoed.id != emitted.id):
        return False
    try:
        arguments = json.loads(emitted.arguments or "{}")
    except ValueError:
        return _carries_raw(echoed.arguments, emitted.arguments)
    return _matches(echoed.arguments, arguments)


def _matches(echoed: object, emitted: object) -> bool:
    """Whether ``echoed`` equals ``emitted``, apart from empty defaults that were filled in."""
    if isinstance(emitted, Mapping) and isinstance(echoed, Mapping):
        extra = (value for key, value in echoed.items() if key not in emitted)
        # ``0 == False``: a filled-in zero is a value, a filled-in false flag is none.
        return all(
            key in echoed and _matches(echoed[key], value) for key, value in emitted.items()
        ) and all(one is None or one is False or one in ("", [], {}) for one in extra)
    if isinstance(emitted, list | tuple) and isinstance(echoed, list | tuple):
        return len(emitted) == len(echoed) and all(map(_matches, echoed, emitted))
    if isinstance(emitted, bool) or isinstance(echoed, bool):
        return emitted is echoed
    return emitted == echoed


def _carries_raw(echoed: Mapping[str, Any], raw: str) -> bool:
    for key in _UNPARSED_KEYS:
        if key in echoed:
            kept = echoed[key]
            return bool((kept.get("raw") if isinstance(kept, Mapping) else kept) == raw)
    return False
