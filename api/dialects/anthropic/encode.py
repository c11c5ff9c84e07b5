"""Encodes items as Anthropic stream events, and a whole answer as a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from api.dialects.anthropic.bodies import (
    AnthropicBlock,
    AnthropicUsage,
    AppliedContextEdit,
    AppliedEdits,
    CacheMiss,
    CacheMissReason,
    IterationUsage,
    MessageDiagnostics,
)
from api.dialects.anthropic.tools import AnthropicTools
from api.dialects.compaction import summary_of
from api.dialects.encoding import miss_of, sign_reasoning
from api.dialects.parsing import arguments_of
from api.errors import error_body
from api.generation import (
    AssembledAnswer,
    Block,
    BlockKind,
    ThinkingShown,
    ending_or_error,
    job_hex,
)
from api.http.messages import Dialect
from api.http.sse import Frame, Part
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.divergence import Cause
from domain.chat.items import (
    Failed,
    Finished,
    Started,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from domain.errors import SemanticError
from domain.values import JobId, StopReason, Usage

#: Claude Code goes on by itself after ``max_tokens`` and ``model_context_window_exceeded``.
_STOP_REASONS: Final[Mapping[StopReason, str]] = {
    StopReason.END_TURN: "end_turn",
    StopReason.MAX_TOKENS: "max_tokens",
    StopReason.STOP_SEQUENCE: "stop_sequence",
    StopReason.CONTEXT_WINDOW: "model_context_window_exceeded",
    StopReason.CANCELLED: "end_turn",
}
_BLANKS: Final[Mapping[BlockKind, AnthropicBlock]] = {
    "text": {"type": "text", "text": ""},
    "thinking": {"type": "thinking", "thinking": "", "signature": ""},
}


_MISSES: Final[Mapping[Cause, CacheMiss]] = {
    Cause.MODEL_CHANGED: "model_changed",
    Cause.SYSTEM_CHANGED: "system_changed",
    Cause.TOOL_ADDED: "tools_changed",
    Cause.TOOL_REMOVED: "tools_changed",
    Cause.TOOL_EDITED: "tools_changed",
    Cause.TOOLS_REORDERED: "tools_changed",
    Cause.OTHER_CONVERSATION: "messages_changed",
    Cause.HISTORY_EDITED: "messages_changed",
    Cause.HISTORY_CUT: "messages_changed",
    Cause.ANSWER_REWRITTEN: "messages_changed",
}


def diagnostics_of(
    previous: JobId | None, found: CacheDiagnosis | None
) -> MessageDiagnostics | None:
    """Return the member ``diagnostics``; ``None`` if nothing of the earlier prompt was missed.

    Args:
        previous: The job of the message to compare with; ``None`` where the caller has none such.
        found: The diagnosis of the new message; ``None`` before its prompt is known.
    """
    if previous is None:
        return {"cache_miss_reason": {"type": "previous_message_not_found"}}
    if found is None:
        return {"cache_miss_reason": None}
    if found.divergence is None:
        return None
    miss = miss_of(found, previous, _MISSES)
    if miss is None:
        # The vendor's words are for changes of this prompt; others are in x-semantic-cache.
        return {"cache_miss_reason": {"type": "unavailable"}}
    reason: CacheMissReason = {"type": miss, "cache_missed_input_tokens": found.missed_tokens}
    return {"cache_miss_reason": reason}


@dataclass(frozen=True, slots=True)
class Summarized:
    """A summary that a message begins with, and what it took; without it while it is written."""

    summary: str = ""
    usage: Usage = Usage()

    @property
    def block(self) -> AnthropicBlock:
        """The block that the client sends back."""
        return {"type": "compaction", "content": self.summary}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageForm:
    """What a request decides of the form of its message.

    Attributes:
        model: Its name in the request.
        thinking: How much of the reasoning the message shows.
        has_cache_control: Whether the usage reports written cache tokens.
        tools: The tools of the request, which decide how a call is shown.
        applied_edits: The edits that changed the prompt; ``None`` where the request wants none.
        diagnostics: The member of that name; empty where the request does not ask for it.
        summarized: The compaction that the message begins with.
        is_compaction: Whether the answer is that summary, and nothing follows it.
    """

    model: str
    thinking: ThinkingShown = "none"
    has_cache_control: bool = False
    tools: AnthropicTools = field(default_factory=AnthropicTools)
    applied_edits: Sequence[AppliedContextEdit] | None = None
    diagnostics: Mapping[str, MessageDiagnostics | None] = field(default_factory=dict)
    summarized: Summarized | None = None
    is_compaction: bool = False

    @property
    def edits(self) -> Mapping[str, AppliedEdits]:
        """The member ``context_management``, if the message has it."""
        if self.applied_edits is None:
            return {}
        return {"context_management": {"applied_edits": [*self.applied_edits]}}

    def message(
        self, job_id: JobId, usage: Usage, content: Sequence[AnthropicBlock] = ()
    ) -> dict[str, Any]:
        """Return a message that has not ended."""
        return {
            "id": f"msg_{job_hex(job_id)}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self.usage(usage),
            **self.diagnostics,
        }

    def usage(self, usage: Usage) -> AnthropicUsage:
        """Return token counts in the shape of this dialect."""
        message = self._counts("message", usage)
        counts: AnthropicUsage = {
            "input_tokens": message["input_tokens"],
            "cache_creation_input_tokens": message["cache_creation_input_tokens"],
            "cache_read_input_tokens": message["cache_read_input_tokens"],
            "output_tokens": message["output_tokens"],
            "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        }
        if self.summarized is not None:
            summary = self._counts("compaction", self.summarized.usage)
            counts["iterations"] = [summary] if self.is_compaction else [summary, message]
        return counts

    def _counts(self, kind: Literal["compaction", "message"], usage: Usage) -> IterationUsage:
        computed = usage.prompt_tokens - usage.cached_tokens
        kept = max(0, usage.kept_tokens - usage.cached_tokens)
        created = kept if self.has_cache_control else 0
        return {
            "type": kind,
            "input_tokens": computed - created,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }


class AnthropicEncoder:
    """Encodes the items of a job as events, block by block.

    Args:
        job_id: The job, which gives the message its id.
        started: The item with the length of the prompt, if the job has started.
    """

    def __init__(
        self, form: MessageForm, *, job_id: JobId, request_id: str, started: Started | None = None
    ) -> None:
        self._form = form
        self._job_id = job_id
        self._request_id = request_id
        self._started = started
        self._open: BlockKind | None = None
        self._index = -1
        #: Reasoning of the open block, which its signature covers.
        self._reasoning: list[str] = []
        self._calls: list[Block] = []

    def open(self) -> list[Part]:
        """Return ``message_start``; ``message_delta`` later overrides its token counts."""
        usage = Usage()
        if (started := self._started) is not None:
            usage = Usage(prompt_tokens=started.prompt_tokens, cached_tokens=started.cached_tokens)
        parts: list[Part] = [
            _event("message_start", message=self._form.message(self._job_id, usage))
        ]
        return parts + self._compaction(self._form.summarized)

    def _compaction(self, summarized: Summarized | None) -> list[Part]:
        """Return the events of a whole compaction, which has one delta."""
        if summarized is None:
            return []
        self._index += 1
        block = summarized.block
        blank = {**block, "content": None}
        delta = {**block, "type": "compaction_delta"}
        return [
            _event("content_block_start", index=self._index, content_block=blank),
            _event("content_block_delta", index=self._index, delta=delta),
            _event("content_block_stop", index=self._index),
        ]

    def item(self, item: StreamItem) -> list[Part]:
        """Return the events of an item."""
        body = item.body
        match body:
            case Text():
                return self._delta("text", {"type": "text_delta", "text": body.text})
            case Thinking() if self._form.thinking != "none":
                return self._think(body.text)
            case ToolStart() | ToolInput() | ToolEnd():
                return self._tool(body)
            case Finished() | Failed():
                return self._end(body)
            case _:
                return []  # usage and pings report the start and progress

    def ping(self) -> list[Part]:
        """Return a ping event; it resets the idle timers of clients, a comment does not."""
        return [_event("ping")]

    def fail(self, error: SemanticError) -> list[Part]:
        """Return the last event of a failed stream."""
        return [error_event(error, self._request_id)]

    def _think(self, text: str) -> list[Part]:
        self._reasoning.append(text)
        if self._form.thinking == "whole":
            return self._delta("thinking", {"type": "thinking_delta", "thinking": text})
        return self._start("thinking") if self._open != "thinking" else []

    def _delta(self, kind: BlockKind, delta: Mapping[str, str]) -> list[Part]:
        parts = self._start(kind) if self._open != kind else []
        return [*parts, _event("content_block_delta", index=self._index, delta=delta)]

    def _tool(self, body: ToolStart | ToolInput | ToolEnd) -> list[Part]:
        if isinstance(body, ToolStart):
            self._calls.append(Block(kind="tool", id=body.id, name=body.name))
            return self._start("tool", _call_block(self._calls[-1], self._form.tools))
        call = self._calls[-1]
        if isinstance(body, ToolEnd):
            parts = self._stop()
            if self._form.tools.is_search(call.name):
                parts += self._start("tool", _search_result(call, self._form.tools))
                parts += self._stop()
            return parts
        call.text += body.fragment
        delta = {"type": "input_json_delta", "partial_json": body.fragment}
        return [_event("content_block_delta", index=self._index, delta=delta)]

    def _start(self, kind: BlockKind, blank: AnthropicBlock | None = None) -> list[Part]:
        parts = self._stop()
        self._open = kind
        self._index += 1
        return [
            *parts,
            _event("content_block_start", index=self._index, content_block=blank or _BLANKS[kind]),
        ]

    def _stop(self) -> list[Part]:
        if self._open is None:
            return []
        parts: list[Part] = []
        if self._open == "thinking":
            text, self._reasoning = "".join(self._reasoning), []
            carried = self._form.thinking == "omitted"
            signature = sign_reasoning(self._job_id, self._index, text, carried=carried)
            delta = {"type": "signature_delta", "signature": signature}
            parts = [_event("content_block_delta", index=self._index, delta=delta)]
        self._open = None
        return [*parts, _event("content_block_stop", index=self._index)]

    def _end(self, body: Finished | Failed) -> list[Part]:
        end = ending_or_error(body)
        if isinstance(end, SemanticError):
            return self.fail(end)
        delta = {
            "stop_reason": _stop_reason(end, self._calls, self._form.tools),
            "stop_sequence": end.stop_sequence,
        }
        usage = self._form.usage(end.usage)
        return [
            *self._stop(),
            _event("message_delta", delta=delta, usage=usage, **self._form.edits),
            _event("message_stop"),
        ]


class CompactionEncoder(AnthropicEncoder):
    """Encodes the items of a summary as events of a message with nothing else."""

    _answer: AssembledAnswer | None = None

    def item(self, item: StreamItem) -> list[Part]:
        """Return the events of an item: those of the last one are all but ``message_start``."""
        self._answer = self._answer or AssembledAnswer()
        self._answer.add(item)
        if self._answer.ending is None:
            return []
        end = ending_or_error(self._answer.ending)
        if isinstance(end, SemanticError):
            return self.fail(end)
        try:
            form = _summarized_form(self._answer, self._form)
        except SemanticError as error:
            return self.fail(error)
        return [
            *self._compaction(form.summarized),
            _event(
                "message_delta",
                delta={"stop_reason": "compaction", "stop_sequence": None},
                usage=form.usage(Usage()),
                **form.edits,
            ),
            _event("message_stop"),
        ]


def _summarized_form(answer: AssembledAnswer, form: MessageForm) -> MessageForm:
    summarized = Summarized(summary_of(answer, "max_tokens"), answer.finished().usage)
    return replace(form, summarized=summarized)


def assemble_message(answer: AssembledAnswer, form: MessageForm, job_id: JobId) -> dict[str, Any]:
    """Return the message of a finished answer, an ``AnthropicMessage``.

    Args:
        job_id: The job, which gives the message its id.

    Raises:
        InvalidRequest: The answer is a compaction without a summary.
    """
    if form.is_compaction:
        form = _summarized_form(answer, form)
        content = [form.summarized.block] if form.summarized is not None else []
        message = form.message(job_id, Usage(), content)
        return {**message, "stop_reason": "compaction", **form.edits}
    ending, tools = answer.finished(), form.tools
    content = [] if form.summarized is None else [form.summarized.block]
    for block in _shown_blocks(answer, thinking=form.thinking):
        if block.kind != "tool":
            content.append(_block(block, job_id, len(content), form.thinking))
            continue
        arguments = dict(arguments_of(block.text or "{}"))
        content.append({**_call_block(block, tools), "input": arguments})
        if tools.is_search(block.name) and block.is_whole:
            content.append(_search_result(block, tools))
    return {
        **form.message(job_id, ending.usage, content),
        "stop_reason": _stop_reason(ending, answer.tools, tools),
        "stop_sequence": ending.stop_sequence,
        **form.edits,
    }


def _shown_blocks(answer: AssembledAnswer, *, thinking: ThinkingShown) -> list[Block]:
    """Return the blocks of the message; without reasoning, the texts around it become one."""
    shown: list[Block] = []
    for block in answer.blocks:
        if block.kind == "thinking" and thinking == "none":
            continue
        if shown and shown[-1].kind == block.kind == "text":
            shown[-1] = Block(kind="text", text=shown[-1].text + block.text)
        else:
            shown.append(block)
    return shown


def _block(block: Block, job_id: JobId, index: int, shown: ThinkingShown) -> AnthropicBlock:
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    signature = sign_reasoning(job_id, index, block.text, carried=shown == "omitted")
    text = block.text if shown == "whole" else ""
    return {"type": "thinking", "thinking": text, "signature": signature}


def _call_block(call: Block, tools: AnthropicTools) -> AnthropicBlock:
    """Return the block of a call without its input."""
    if tools.is_search(call.name):
        return {"type": "server_tool_use", "id": f"srv{call.id}", "name": call.name, "input": {}}
    shown = tools.shown_name(call.name)
    return {"type": "tool_use", "id": call.id, **shown, "input": {}}  # type: ignore[typeddict-item]  # mypy reads no keys of a mapping


def _search_result(call: Block, tools: AnthropicTools) -> AnthropicBlock:
    return {
        "type": "tool_search_tool_result",
        "tool_use_id": f"srv{call.id}",
        "content": tools.search(call.name, call.text),
    }


def _stop_reason(ending: Finished, calls: Sequence[Block], tools: AnthropicTools) -> str:
    """Return the reason; a turn that only searched for tools pauses until it is sent back."""
    if calls and ending.stop_reason is StopReason.END_TURN:
        searches = all(tools.is_search(call.name) for call in calls)
        return "pause_turn" if searches else "tool_use"
    return _STOP_REASONS[ending.stop_reason]


def error_event(error: SemanticError, request_id: str) -> Frame:
    """Return the event of a stream that failed."""
    return Frame(event="error", data=error_body(error, Dialect.ANTHROPIC, request_id))


def _event(event_type: str, **members: Any) -> Frame:  # noqa: ANN401 - any JSON value
    return Frame(event=event_type, data={"type": event_type, **members})
