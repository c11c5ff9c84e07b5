"""An answer becomes a reply of Ollama, whole or line by line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from api.dialects.encoding import response_logprobs
from api.dialects.ollama.bodies import OllamaFigures, OllamaToolCall
from api.dialects.parsing import RequestParser, arguments_of
from api.errors import error_body
from api.generation import AssembledAnswer, Block, ending_or_error
from api.http.messages import Dialect, Request
from api.http.sse import Line, Part
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
from domain.chat.logprobs import TokenLogprob
from domain.errors import SemanticError
from domain.ports import Clock
from domain.values import StopReason, Usage, rfc3339

_DONE_REASONS: Final[Mapping[StopReason, Literal["stop", "length"]]] = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.MAX_TOKENS: "length",
    StopReason.CONTEXT_WINDOW: "length",
    StopReason.CANCELLED: "stop",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPiece:
    """A part of an answer, or all of it."""

    text: str = ""
    thinking: str = ""
    calls: Sequence[OllamaToolCall] = ()
    logprobs: Sequence[TokenLogprob] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationKind:
    """Chats or generations.

    Attributes:
        protocol: Name in the log.
        members: Returns the members of a reply that hold a piece.
    """

    protocol: str
    parse: RequestParser
    members: Callable[[AnswerPiece], Mapping[str, Any]]


def chat_members(piece: AnswerPiece) -> Mapping[str, Any]:
    """Return the message of a chat."""
    turn: dict[str, Any] = {"role": "assistant", "content": piece.text}
    if piece.thinking:
        turn["thinking"] = piece.thinking
    if piece.calls:
        turn["tool_calls"] = list(piece.calls)
    return {"message": turn}


def generate_members(piece: AnswerPiece) -> Mapping[str, Any]:
    """Return the text of a generation, which has no calls."""
    thinking = {"thinking": piece.thinking} if piece.thinking else {}
    return {"response": piece.text} | thinking


def call_of(block: Block, index: int) -> OllamaToolCall:
    """Return a complete call."""
    arguments = dict(arguments_of(block.text or "{}"))
    return {
        "id": block.id,
        "function": {"index": index, "name": block.name, "arguments": arguments},
    }


def figures(request: Request, usage: Usage) -> OllamaFigures:
    """Return the token counts and the durations of an answer that ends now."""
    marks, now_ns = request.marks, time.time_ns()
    accepted_ns = marks.accepted_ns or now_ns
    output_ns = marks.output_ns or now_ns
    return {
        "total_duration": max(0, now_ns - marks.began_ns),
        "load_duration": max(0, accepted_ns - marks.began_ns),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": max(0, output_ns - accepted_ns),
        "eval_count": usage.completion_tokens,
        "eval_duration": max(0, now_ns - output_ns),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyForm:
    """The form of the reply to one request.

    Attributes:
        model: Its name in the request, without the tag that clients add.
        is_load: Whether the request only loads the model.
    """

    kind: GenerationKind
    model: str
    request: Request
    clock: Clock
    is_load: bool = False

    def piece(self, piece: AnswerPiece) -> dict[str, Any]:
        """Return a line with a piece of the answer."""
        return self._reply(piece) | {"done": False}

    def last(self, piece: AnswerPiece, ending: Finished) -> dict[str, Any]:
        """Return the whole reply, or the last line of a stream."""
        reason = "load" if self.is_load else _DONE_REASONS[ending.stop_reason]
        done = {"done": True, "done_reason": reason}
        return self._reply(piece) | done | figures(self.request, ending.usage)

    def whole(self, answer: AssembledAnswer) -> dict[str, Any]:
        """Return the reply with a finished answer; a call that was cut is left out."""
        whole_calls = [block for block in answer.tools if block.is_whole]
        piece = AnswerPiece(
            text=answer.joined("text"),
            thinking=answer.joined("thinking"),
            calls=[call_of(block, index) for index, block in enumerate(whole_calls)],
            logprobs=answer.logprobs,
        )
        return self.last(piece, answer.finished())

    def _reply(self, piece: AnswerPiece) -> dict[str, Any]:
        reply = {"model": self.model, "created_at": rfc3339(self.clock.now())}
        chances = {"logprobs": response_logprobs(piece.logprobs)} if piece.logprobs else {}
        return {**reply, **self.kind.members(piece), **chances}


class LineEncoder:
    """Encodes the items of a job as lines of JSON; a call is sent when it is complete."""

    def __init__(self, form: ReplyForm) -> None:
        self._form = form
        self._call = Block(kind="tool")
        self._calls = 0

    def open(self) -> list[Part]:
        """Return nothing: the first output is the first line."""
        return []

    def item(self, item: StreamItem) -> list[Part]:
        """Return the line of an item, if it has one."""
        body = item.body
        if isinstance(body, Finished | Failed):
            end = ending_or_error(body)
            if isinstance(end, SemanticError):
                return self.fail(end)
            return [Line(self._form.last(AnswerPiece(), end))]
        piece = self._piece(body)
        return [] if piece is None else [Line(self._form.piece(piece))]

    def ping(self) -> list[Part]:
        """Return a line without output: the format has no comments."""
        return [Line(self._form.piece(AnswerPiece()))]

    def fail(self, error: SemanticError) -> list[Part]:
        """Return the last line of a failed stream."""
        return [Line(error_body(error, Dialect.OLLAMA, self._form.request.id))]

    def _piece(self, body: Body) -> AnswerPiece | None:
        match body:
            case Text():
                return AnswerPiece(text=body.text, logprobs=body.logprobs)
            case Thinking():
                return AnswerPiece(thinking=body.text)
            case ToolStart():
                self._call = Block(kind="tool", id=body.id, name=body.name)
            case ToolInput():
                self._call.text += body.fragment
            case ToolEnd():
                self._calls += 1
                return AnswerPiece(calls=[call_of(self._call, self._calls - 1)])
            case _:
                pass  # the start and progress have no line
        return None
