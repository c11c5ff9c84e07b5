"""What a reader still lacks of a job that has ended, out of the broker's store and the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

from api.protocols.shared.logprobs import response_logprobs
from api.schemas.replies import JobOutput, JobToolCall
from api.services import Services
from domain.chat.generation import EmittedCall
from domain.chat.items import (
    Body,
    Failed,
    Finished,
    StreamItem,
    Text,
    Thinking,
    ToolEnd,
    ToolInput,
    ToolStart,
)
from domain.chat.stored_answer import StoredAnswer
from domain.errors import EngineFailure, ItemsLost, PayloadMissing, QueueUnavailable
from domain.job.view import JobView
from domain.values import Digest, JobId, StopReason


@dataclass(slots=True, kw_only=True)
class ReaderPosition:
    """How much of an answer a reader has; grows by ``add``.

    Attributes:
        n: Number of the last item, -1 before the first.
        is_counted: Whether the characters below are known: not for a reader that brings a number
            whose items are forgotten.
        thinking: Characters of reasoning.
        text: Characters of text.
        calls: Tool calls that have begun.
        arguments: Characters of the arguments of the last of them.
        is_call_open: Whether the last of them has no end yet.
        logprobs: Tokens of the text whose likelihood was told.
        is_over: Whether the end is among it.
    """

    n: int = -1
    is_counted: bool = True
    thinking: int = 0
    text: int = 0
    calls: int = 0
    arguments: int = 0
    is_call_open: bool = False
    logprobs: int = 0
    is_over: bool = False

    def add(self, item: StreamItem) -> None:
        """Take the next item in."""
        if item.n is None:
            return
        self.n = item.n
        match item.body:
            case Text(text=text, logprobs=logprobs):
                self.text += len(text)
                self.logprobs += len(logprobs)
            case Thinking(text=text):
                self.thinking += len(text)
            case ToolStart():
                self.calls, self.arguments, self.is_call_open = self.calls + 1, 0, True
            case ToolInput(fragment=fragment):
                self.arguments += len(fragment)
            case ToolEnd():
                self.is_call_open = False
            case Finished() | Failed():
                self.is_over = True
            case _:
                return  # the beginning is no part of the answer


def told_until(after: int, stored: Sequence[StreamItem]) -> ReaderPosition:
    """Return what a reader has whose last item is ``after``.

    Args:
        after: A number, -1 for a reader that has nothing.
        stored: The items from 0 on that the broker still has.
    """
    if after >= len(stored):
        return ReaderPosition(n=after, is_counted=False)
    told = ReaderPosition()
    for item in stored[: after + 1]:
        told.add(item)
    return told


def stored_items(job_id: JobId, services: Services) -> tuple[StreamItem, ...]:
    """Return what the broker still has of a job; nothing if it is away. Blocks."""
    try:
        return services.backlog.read(job_id)
    except QueueUnavailable:
        return ()


def rest_of(job_id: JobId, told: ReaderPosition, services: Services) -> list[StreamItem] | None:
    """Return what is left to tell of a job that has ended, ``None`` if it goes on. Blocks.

    Items that the broker has are told as they are. What only the log knows follows without numbers,
    since it is cut into other items than those that were lost. Nothing is told twice.

    Raises:
        LogUnavailable: The log cannot be read.
    """
    view = services.views.get(job_id)
    if view is None or not view.status.is_terminal:
        return None
    stored = stored_items(job_id, services)
    fresh = list(stored[told.n + 1 :])
    if stored and stored[-1].is_terminal and (fresh or told.is_over or not told.is_counted):
        return fresh
    # A job that lost its items may have been ended under a number that this reader has already.
    known = copy(told)
    for item in fresh:
        known.add(item)
    return [*fresh, *_unsaid(known, view, services)]


def lacking(told: ReaderPosition, answer: StoredAnswer) -> Iterator[Body]:
    """Yield what a reader lacks of a whole answer."""
    if told.is_call_open and told.calls <= len(answer.calls):
        begun = answer.calls[told.calls - 1]
        if fragment := begun.arguments[told.arguments :]:
            yield ToolInput(fragment=fragment, ids=())
        if begun.is_complete:
            yield ToolEnd()
    if thinking := answer.thinking[told.thinking :]:
        yield Thinking(text=thinking, ids=())
    if text := answer.text[told.text :]:
        yield Text(text=text, ids=(), logprobs=(answer.logprobs or ())[told.logprobs :])
    for call in answer.calls[told.calls :]:
        yield ToolStart(id=call.id, name=call.name)
        yield ToolInput(fragment=call.arguments, ids=())
        if call.is_complete:
            yield ToolEnd()


def read_output(view: JobView, services: Services) -> JobOutput | None:
    """Return the answer of a job for its client; ``None`` as below. Blocks."""
    stored = read_stored(view, services)
    if stored is None:
        return None
    output: JobOutput = {"text": stored.text, "thinking": stored.thinking}
    if stored.calls:
        output["tool_calls"] = [_tool_call(call) for call in stored.calls]
    if stored.logprobs is not None:
        output["logprobs"] = response_logprobs(stored.logprobs)
    return output


def read_stored(view: JobView, services: Services) -> StoredAnswer | None:
    """Return the answer of a job; ``None`` if there is none or it was erased. Blocks."""
    if view.output is None:
        return None
    try:
        return StoredAnswer.from_bytes(services.payloads.get(Digest(view.output)))
    except PayloadMissing:
        return None


def _tool_call(call: EmittedCall) -> JobToolCall:
    return {
        "arguments": call.arguments,
        "id": call.id,
        "is_complete": call.is_complete,
        "name": call.name,
    }


def _unsaid(told: ReaderPosition, view: JobView, services: Services) -> list[StreamItem]:
    output = read_stored(view, services)
    attempt = max(view.attempt, 1)
    if output is not None and not told.is_counted:
        lost = ItemsLost(view.id, after=told.n)
        body = Failed(error=lost.code, message=lost.message, retryable=lost.retryable)
        return [StreamItem(n=None, attempt=attempt, body=body)]
    bodies = [] if output is None else list(lacking(told, output))
    if not bodies and told.n >= 0:
        # Only the end is missing, and its number is known.
        return [StreamItem(n=told.n + 1, attempt=attempt, body=_ending(view))]
    return [StreamItem(n=None, attempt=attempt, body=body) for body in (*bodies, _ending(view))]


def _ending(view: JobView) -> Finished | Failed:
    if view.stop_reason is not None:
        return Finished(
            stop_reason=StopReason(view.stop_reason),
            usage=view.usage,
            stop_sequence=view.stop_sequence,
        )
    return Failed(
        error=view.error or EngineFailure.code,
        message=view.error_message or "the job failed",
        retryable=False,
    )
