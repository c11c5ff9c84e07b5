"""Encodes items as stream events of OpenAI Responses.

The events are a pure function of the request and the items. A second stream of the same response
has the same sequence numbers, so a reader can continue after the last event that it has. An answer
that begins anew under another model has numbers from its epoch on, so that such a reader is found.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from api.dialects.encoding import delta_logprobs
from api.dialects.openai_responses.bodies import (
    ResponseObject,
)
from api.dialects.openai_responses.compaction import compaction_item
from api.dialects.openai_responses.encode import (
    ItemStatus,
    ResponseEnvelope,
    ended_response,
    output_item,
    output_item_id,
    reasoning_part,
    response_object,
    text_part,
)
from api.dialects.openai_responses.requested import Item
from api.dialects.openai_responses.tools import (
    CustomInput,
    call_kind,
    is_complete,
    is_late,
)
from api.errors import error_body
from api.generation import AssembledAnswer, Block
from api.http.messages import Dialect
from api.http.sse import Comment, Frame, Part
from domain.chat.items import (
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
    ItemsLost,
    ModelChanged,
    SemanticError,
)

#: Sequence numbers that belong to one epoch; more than events of one answer.
EPOCH_EVENTS: Final = 1_000_000
_ENDS: Final = {"completed": "completed", "incomplete": "incomplete"}


class ResponsesEncoder:
    """Encodes the items of a job as events, item by item.

    Args:
        envelope: Members of the response.
        request_id: Id of the request, for error events.
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
            *self._compacted(),
        ]
        self._opened = self._number
        return self._unseen(frames) or [Comment("going on")]

    def _compacted(self) -> list[Frame]:
        item = self._envelope.requested.compacted
        if item is None:
            return []
        return [
            self._event(f"response.output_item.{what}", output_index=0, item=dict(item))
            for what in ("added", "done")
        ]

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
        self._number = max(self._number, self._after) + 1
        return [error_event(error, self._number, self._request_id)]

    def _unseen(self, frames: list[Frame]) -> list[Part]:
        """Return the frames that the reader does not have."""
        return list(frames[max(0, self._after + len(frames) - self._number) :])

    def _frames(self, item: StreamItem) -> list[Frame]:
        body = item.body
        if self._envelope.requested.is_compaction:
            self._answer.add(item)
            return self._summary_begins() if isinstance(body, Text) else []
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

    def _summary_begins(self) -> list[Frame]:
        if self._is_open:
            return []
        self._is_open = True
        item = compaction_item(self._envelope.job_id, "")
        return [
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.compaction.compacting", output_index=0, item_id=item["id"]),
        ]

    def _summary_ends(self, whole: ResponseObject) -> list[Frame]:
        begun = self._summary_begins() if whole["output"] else []
        return begun + [
            self._event("response.output_item.done", output_index=0, item=item)
            for item in whole["output"]
        ]

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
                place = self._place(self._answer.blocks)
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
        if self._envelope.requested.is_compaction:
            closed = self._summary_ends(whole)
        elif status in _ENDS:
            closed = self._close("completed" if status == "completed" else "incomplete")
        last = self._event(f"response.{_ENDS.get(status, 'failed')}", response=whole)
        return [*closed, last]

    def _place(self, blocks: Sequence[Block]) -> int:
        return len(blocks) - (self._envelope.requested.compacted is None)

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
        return self._event(event_type, output_index=self._place(blocks), item=item)

    def _about(self, event_type: str, **members: Any) -> Frame:  # noqa: ANN401 - any JSON value
        blocks = self._answer.blocks
        item_id = output_item_id(self._envelope, blocks)
        return self._event(event_type, item_id=item_id, output_index=self._place(blocks), **members)

    def _event(self, event_type: str, **members: Any) -> Frame:  # noqa: ANN401 - any JSON value
        self._number += 1
        data = {"type": event_type, "sequence_number": self._number, **members}
        return Frame(event=event_type, data=data)


def error_event(error: SemanticError, number: int, request_id: str) -> Frame:
    """Return the event of a stream that failed."""
    body = error_body(error, Dialect.OPENAI, request_id)["error"]
    fault = {name: body[name] for name in ("code", "message", "param")}
    return Frame(event="error", data={"type": "error", "sequence_number": number, **fault})
