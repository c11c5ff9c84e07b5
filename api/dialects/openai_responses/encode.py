"""Encodes items as stream events of OpenAI Responses.

The events are a pure function of the request and the items. A second stream of the same response
has the same sequence numbers, so a reader can continue after the last event that it has. An answer
that begins anew under another model has numbers from its epoch on, so that such a reader is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from api.dialects.encoding import delta_logprobs, miss_of, response_logprobs, sign_reasoning
from api.dialects.openai_responses.bodies import (
    CacheDiagnostics,
    CacheMiss,
    ResponseFault,
    ResponseObject,
    ResponseUsage,
)
from api.dialects.openai_responses.parse import (
    Item,
    RequestedFields,
)
from api.dialects.openai_responses.tools import (
    CustomInput,
    call_item,
    call_kind,
    call_prefix,
    is_complete,
    is_late,
)
from api.errors import error_body
from api.generation import AssembledAnswer, Block, ending_or_error, job_hex
from api.http.messages import Dialect
from api.http.sse import Comment, Frame, Part
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.divergence import Cause
from domain.chat.items import (
    Finished,
    Progress,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from domain.chat.logprobs import TokenLogprob
from domain.errors import (
    GenerationCancelled,
    InvalidRequest,
    ItemsLost,
    ModelChanged,
    Overloaded,
    PromptTooLong,
    SemanticError,
)
from domain.values import JobId, JobStatus, Sampling, StopReason, Usage

PROTOCOL: Final = "openai-responses"
ItemStatus = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]

_TRUNCATED: Final = frozenset({StopReason.MAX_TOKENS, StopReason.CONTEXT_WINDOW})


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseEnvelope:
    """The members of a response that are known before its first item.

    Attributes:
        job_id: The job, which gives the response its id.
        created_s: Unix seconds of acceptance.
        diagnosis: What the cache had of the prompt, if the request asks and the prompt is known.
        sampling: Of the attempt, once one has begun; a live stream does not have it.
        completed_s: Unix seconds of the end; a live stream does not have it.
    """

    job_id: JobId
    created_s: int
    requested: RequestedFields
    diagnosis: CacheDiagnosis | None = None
    sampling: Sampling | None = None
    completed_s: int | None = None

    @property
    def id(self) -> str:
        """The id of the response."""
        return response_id(self.job_id)


def response_id(job_id: JobId) -> str:
    """Return the id of the response of a job."""
    return f"resp_{job_hex(job_id)}"


def response_object(
    envelope: ResponseEnvelope,
    status: ResponseStatus,
    *,
    output: Sequence[Item] = (),
    usage: Usage | None = None,
    error: SemanticError | None = None,
    incomplete: str | None = None,
) -> ResponseObject:
    """Return the response object."""
    members: dict[str, Any] = {
        "background": envelope.requested.is_background,
        "error": None if error is None else _fault(error),
        "incomplete_details": None if incomplete is None else {"reason": incomplete},
        "output": [dict(item) for item in output],
        "previous_response_id": envelope.requested.previous,
        "store": envelope.requested.is_stored,
        "usage": None if usage is None else _usage(usage),
    }
    whole: ResponseObject = {
        "id": envelope.id,
        "object": "response",
        "created_at": envelope.created_s,
        "status": status,
        "completed_at": envelope.completed_s if status == "completed" else None,
        **envelope.requested.echo,  # type: ignore[typeddict-item]  # echo has the rest
        **_sampled(envelope),
        **members,
    }
    if envelope.requested.compared is not None:
        compared = JobId(envelope.requested.compared)
        whole["prompt_cache_diagnostics"] = _diagnostics(compared, envelope.diagnosis)
    return whole


def _sampled(envelope: ResponseEnvelope) -> dict[str, float]:
    """Return what the answer is drawn with: of its attempt, else of the request, else neutral."""
    asked, used = envelope.requested.echo, envelope.sampling or Sampling()
    return {
        name: getattr(used, name) if envelope.sampling or asked.get(name) is None else asked[name]
        for name in ("temperature", "top_p", "presence_penalty", "frequency_penalty")
    }


_MISSES: Final[Mapping[Cause, CacheMiss]] = {
    Cause.MODEL_CHANGED: "model_changed",
    Cause.THINKING_TOGGLED: "reasoning_effort_changed",
    Cause.EFFORT_CHANGED: "reasoning_effort_changed",
    Cause.TOOL_ADDED: "tools_changed",
    Cause.TOOL_REMOVED: "tools_changed",
    Cause.TOOL_EDITED: "tools_changed",
    Cause.TOOLS_REORDERED: "tools_changed",
    Cause.SYSTEM_CHANGED: "input_changed",
    Cause.OTHER_CONVERSATION: "input_changed",
    Cause.HISTORY_EDITED: "input_changed",
    Cause.HISTORY_CUT: "input_changed",
    Cause.ANSWER_REWRITTEN: "input_changed",
}


def _diagnostics(compared: JobId, found: CacheDiagnosis | None) -> CacheDiagnostics | None:
    if not compared:
        return {"type": "comparison_response_not_found"}
    if found is None:
        return None
    if found.divergence is None:
        return {"type": "cache_hit"}
    reason = miss_of(found, compared, _MISSES)
    if reason is None:
        return {"type": "unavailable"}
    return {"type": "cache_miss", "reason": reason, "cache_missed_tokens": found.missed_tokens}


def ended_response(envelope: ResponseEnvelope, answer: AssembledAnswer) -> ResponseObject:
    """Return the response object of an answer that has finished or failed."""
    ending = answer.ending
    if ending is None:
        msg = "only an answer that has ended can be assembled"
        raise TypeError(msg)
    end = ending_or_error(ending)
    usage = ending.usage if isinstance(ending, Finished) else None
    if isinstance(end, SemanticError):
        output = output_items(envelope, answer.blocks, last="incomplete")
        if isinstance(end, GenerationCancelled):
            return response_object(envelope, "cancelled", output=output, usage=usage)
        return response_object(envelope, "failed", output=output, error=end)
    if end.stop_reason in _TRUNCATED and not envelope.requested.is_prewarm:
        return response_object(
            envelope,
            "incomplete",
            output=output_items(envelope, answer.blocks, last="incomplete"),
            usage=usage,
            incomplete="max_output_tokens",
        )
    output = output_items(envelope, answer.blocks, last="completed")
    return response_object(envelope, "completed", output=output, usage=usage)


def unfinished_status(envelope: ResponseEnvelope, status: JobStatus) -> ResponseStatus:
    """Return the status of a response that has not ended."""
    is_queued = envelope.requested.is_background and status is JobStatus.QUEUED
    return "queued" if is_queued else "in_progress"


def output_items(
    envelope: ResponseEnvelope, blocks: Sequence[Block], *, last: ItemStatus
) -> list[dict[str, Any]]:
    """Return the blocks of an answer as items.

    Args:
        last: Status of the last item, if it is a text or reasoning.
    """
    items = []
    for index, block in enumerate(blocks):
        status: ItemStatus = last if index == len(blocks) - 1 else "completed"
        if block.kind == "tool":
            status = "completed" if is_complete(block, envelope.requested.kinds) else "incomplete"
        items.append(output_item(envelope, blocks[: index + 1], status))
    return items


def output_item(
    envelope: ResponseEnvelope, blocks: Sequence[Block], status: ItemStatus
) -> dict[str, Any]:
    """Return the last block as an item."""
    block = blocks[-1]
    number = item_number(blocks)
    item_id = output_item_id(envelope, blocks)
    if block.kind == "text":
        content = [text_part(block.text, block.logprobs)] if status != "in_progress" else []
        return {
            "id": item_id,
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": content,
        }
    if block.kind == "thinking":
        content = [reasoning_part(block.text)] if status != "in_progress" else []
        item = {"id": item_id, "type": "reasoning", "summary": [], "content": content}
        if envelope.requested.is_signed and status != "in_progress":
            signature = sign_reasoning(envelope.job_id, number, block.text, carried=True)
            item["encrypted_content"] = signature
        return item | {"status": status}
    return call_item(block, envelope.requested.kinds, item_id, status)


def item_number(blocks: Sequence[Block]) -> int:
    """Return the number of earlier blocks of the last block's kind."""
    kind = blocks[-1].kind
    return sum(block.kind == kind for block in blocks) - 1


def output_item_id(envelope: ResponseEnvelope, blocks: Sequence[Block]) -> str:
    """Return the id of the last block's item."""
    block = blocks[-1]
    prefix = {"text": "msg", "thinking": "rs"}.get(block.kind)
    if prefix is None:
        prefix = call_prefix(block, envelope.requested.kinds)
    return f"{prefix}_{job_hex(envelope.job_id)}_{item_number(blocks)}"


def text_part(text: str, logprobs: Iterable[TokenLogprob]) -> dict[str, Any]:
    """Return the content part of a message."""
    return {
        "type": "output_text",
        "text": text,
        "annotations": [],
        "logprobs": response_logprobs(logprobs),
    }


def reasoning_part(text: str) -> dict[str, Any]:
    """Return the content part of reasoning."""
    return {"type": "reasoning_text", "text": text}


def find_item(items: Iterable[Item], item_id: str) -> Item | None:
    """Return the item with an id."""
    return next((item for item in items if item["id"] == item_id), None)


def _fault(error: SemanticError) -> ResponseFault:
    code = "server_error"
    if isinstance(error, PromptTooLong):
        # The specification has no code for this; clients know this one.
        code = "context_length_exceeded"
    elif isinstance(error, InvalidRequest):
        code = "invalid_prompt"
    elif isinstance(error, Overloaded):
        code = "rate_limit_exceeded"
    return {"code": code, "message": error.message}


def _usage(usage: Usage) -> ResponseUsage:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


#: Sequence numbers that belong to one epoch; more than events of one answer.
EPOCH_EVENTS: Final = 1_000_000
_ENDS: Final = {"completed": "completed", "incomplete": "incomplete"}


class ResponsesEncoder:
    """Encodes the items of a job as events, item by item.

    Args:
        after: Sequence number of the last event that the reader has; -1 for none.
    """

    def __init__(self, envelope: ResponseEnvelope, *, request_id: str, after: int = -1) -> None:
        self._envelope = envelope
        self._request_id = request_id
        self._after = after
        self._number = -1
        self._epoch = 1
        #: Number of the last event before the first item.
        self._opened = -1
        self._answer = AssembledAnswer()
        self._is_open = False
        #: Input of the open custom tool call.
        self._custom_input = CustomInput()

    def open(self) -> list[Part]:
        """Return the first events of the response."""
        background = self._envelope.requested.is_background
        first = response_object(self._envelope, "queued" if background else "in_progress")
        going = response_object(self._envelope, "in_progress")
        frames = [
            self._event("response.created", response=first),
            *([self._event("response.queued", response=first)] if background else []),
            self._event("response.in_progress", response=going),
        ]
        self._opened = self._number
        return self._unseen(frames) or [Comment("going on")]

    def item(self, item: StreamItem) -> list[Part]:
        """Return the events of an item that the reader does not have.

        Raises:
            ItemsLost: The item is a replacement from the log, whose boundaries differ from those of
                the lost items that the reader has.
            ModelChanged: The reader has events of an earlier epoch.
        """
        if item.epoch > self._epoch and not isinstance(item.body, Progress):
            self._enter(item.epoch)
        if item.is_terminal:
            return self._unseen(self._end(item)) or [Comment("that was all")]
        if item.n is None and self._number < self._after and not isinstance(item.body, Progress):
            raise ItemsLost(self._envelope.job_id, after=self._after)
        return self._unseen(self._frames(item))

    def _enter(self, epoch: int) -> None:
        self._number += (epoch - self._epoch) * EPOCH_EVENTS
        self._epoch = epoch
        if self._opened < self._after < (epoch - 1) * EPOCH_EVENTS:
            raise ModelChanged

    def ping(self) -> list[Part]:
        """Return a comment: the protocol has no ping event."""
        return [Comment("ping")]

    def fail(self, error: SemanticError) -> list[Part]:
        """Return the last event of a failed stream."""
        body = error_body(error, Dialect.OPENAI, self._request_id)["error"]
        self._number = max(self._number, self._after)
        return [
            self._event("error", code=body["code"], message=body["message"], param=body["param"])
        ]

    def _unseen(self, frames: list[Frame]) -> list[Part]:
        """Return the frames that the reader does not have."""
        return list(frames[max(0, self._after + len(frames) - self._number) :])

    def _frames(self, item: StreamItem) -> list[Frame]:
        body = item.body
        match body:
            case Text() | Thinking() if body.text:
                return self._delta(item, body.text)
            case ToolStart():
                return self._begin(item)
            case ToolInput() if body.fragment:
                return self._delta(item, body.fragment)
            case ToolEnd():
                self._answer.add(item)
                return self._close("completed")
            case _:
                return []  # the usage at the end reports the prompt

    def _delta(self, item: StreamItem, text: str) -> list[Frame]:
        parts: list[Frame] = []
        if self._is_open and self._continues(item):
            self._answer.add(item)
        else:
            parts = self._begin(item)
        if self._block.kind == "tool":
            return [*parts, *self._call_delta(text)]
        if isinstance(item.body, Text):
            delta = self._text_event("delta", item.body.logprobs, delta=text)
        else:
            delta = self._about("response.reasoning_text.delta", content_index=0, delta=text)
        return [*parts, delta]

    def _call_delta(self, text: str) -> list[Frame]:
        if is_late(self._block, self._envelope.requested.kinds):
            return []
        kind = call_kind(self._block, self._envelope.requested.kinds)
        if kind == "function":
            return [self._about("response.function_call_arguments.delta", delta=text)]
        # A tool search has no events between its beginning and its end.
        return self._input_delta(self._custom_input.feed(text)) if kind == "custom" else []

    def _input_delta(self, new: str) -> list[Frame]:
        return [self._about("response.custom_tool_call_input.delta", delta=new)] if new else []

    def _call_done(self, item: Item) -> list[Frame]:
        kind = call_kind(self._block, self._envelope.requested.kinds)
        if kind == "function":
            arguments = item["arguments"]
            return [self._about("response.function_call_arguments.done", arguments=arguments)]
        if kind == "shell":
            return self._commands(item["action"]["commands"])
        if kind != "custom":
            return []
        rest = self._input_delta(self._custom_input.close())
        return [*rest, self._about("response.custom_tool_call_input.done", input=item["input"])]

    def _commands(self, commands: Sequence[str]) -> list[Frame]:
        frames = []
        for index, command in enumerate(commands):
            for what, member in (("added", "command"), ("delta", "delta"), ("done", "command")):
                members = {member: "" if what == "added" else command, "command_index": index}
                event_type = f"response.shell_call_command.{what}"
                place = len(self._answer.blocks) - 1
                frames.append(self._event(event_type, output_index=place, **members))
        return frames

    def _continues(self, item: StreamItem) -> bool:
        kind = "text" if isinstance(item.body, Text) else "tool"
        return self._block.kind == ("thinking" if isinstance(item.body, Thinking) else kind)

    def _begin(self, item: StreamItem) -> list[Frame]:
        closed = self._close("completed")
        self._answer.add(item)
        self._is_open, self._custom_input = True, CustomInput()
        if is_late(self._block, self._envelope.requested.kinds):
            return closed
        blank = Block(kind=self._block.kind, id=self._block.id, name=self._block.name)
        added = self._added(blank)
        return [*closed, added, *self._part_event("response.content_part.added", blank)]

    def _added(self, block: Block) -> Frame:
        blocks = [*self._answer.blocks[:-1], block]
        return self._item_event("response.output_item.added", blocks, "in_progress")

    def _close(self, status: ItemStatus) -> list[Frame]:
        """Return the events that end the open item."""
        if not self._is_open:
            return []
        self._is_open = False
        block = self._block
        if block.kind == "tool":
            kinds = self._envelope.requested.kinds
            if not is_complete(block, kinds):
                status = "incomplete"
                if call_kind(block, kinds) == "custom":
                    # Codex runs every call that has a done event, whatever its status.
                    return []
        begun = [self._added(block)] if is_late(block, self._envelope.requested.kinds) else []
        if block.kind == "tool":
            done = self._call_done(output_item(self._envelope, self._answer.blocks, status))
        elif block.kind == "text":
            done = [self._text_event("done", block.logprobs, text=block.text)]
        else:
            done = [self._about("response.reasoning_text.done", content_index=0, text=block.text)]
        return [
            *begun,
            *done,
            *self._part_event("response.content_part.done", block),
            self._item_event("response.output_item.done", self._answer.blocks, status),
        ]

    def _end(self, item: StreamItem) -> list[Frame]:
        self._answer.add(item)
        whole = ended_response(self._envelope, self._answer)
        status = whole["status"]
        closed: list[Frame] = []
        if status in _ENDS:
            closed = self._close("completed" if status == "completed" else "incomplete")
        last = self._event(f"response.{_ENDS.get(status, 'failed')}", response=whole)
        return [*closed, last]

    @property
    def _block(self) -> Block:
        return self._answer.blocks[-1]

    def _text_event(self, what: str, logprobs: Iterable[TokenLogprob], **members: str) -> Frame:
        event_type = f"response.output_text.{what}"
        return self._about(
            event_type, content_index=0, **members, logprobs=delta_logprobs(logprobs)
        )

    def _part_event(self, event_type: str, block: Block) -> list[Frame]:
        if block.kind == "tool":
            return []
        is_text = block.kind == "text"
        part = text_part(block.text, block.logprobs) if is_text else reasoning_part(block.text)
        return [self._about(event_type, content_index=0, part=part)]

    def _item_event(self, event_type: str, blocks: list[Block], status: ItemStatus) -> Frame:
        item = output_item(self._envelope, blocks, status)
        return self._event(event_type, output_index=len(blocks) - 1, item=item)

    def _about(self, event_type: str, **members: Any) -> Frame:  # noqa: ANN401 - any JSON value
        blocks = self._answer.blocks
        item_id = output_item_id(self._envelope, blocks)
        return self._event(event_type, item_id=item_id, output_index=len(blocks) - 1, **members)

    def _event(self, event_type: str, **members: Any) -> Frame:  # noqa: ANN401 - any JSON value
        self._number += 1
        data = {"type": event_type, "sequence_number": self._number, **members}
        return Frame(event=event_type, data=data)
