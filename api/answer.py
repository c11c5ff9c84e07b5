"""The assembled answer of a job, and the ids and times that replies give it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Self

from domain.chat.embedding import Vectors
from domain.chat.generation import EmittedCall
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
from domain.chat.logprobs import TokenLogprob
from domain.chat.stored_answer import StoredAnswer
from domain.errors import (
    EngineFailure,
    GenerationCancelled,
    InvalidRequest,
    LogUnavailable,
    ModelChanged,
    ModelNotFound,
    ModelNotLoaded,
    ModelNotReady,
    ModelUnusable,
    Overloaded,
    PromptTooLong,
    QueueUnavailable,
    SemanticError,
    Unavailable,
)
from domain.job.state import Job
from domain.values import JobId, StopReason

BlockKind = Literal["text", "thinking", "tool"]

_PROMPT_TOO_LONG = re.compile(r"prompt is too long: (\d{1,18}) tokens > (\d{1,18}) maximum")
_ERRORS_BY_CODE: Final[Mapping[str, type[SemanticError]]] = {
    cls.code: cls
    for cls in (
        EngineFailure,
        GenerationCancelled,
        InvalidRequest,
        LogUnavailable,
        ModelChanged,
        ModelNotFound,
        ModelNotLoaded,
        ModelNotReady,
        ModelUnusable,
        Overloaded,
        QueueUnavailable,
        Unavailable,
    )
}


@dataclass(slots=True, kw_only=True)
class Block:
    """Consecutive output of one kind: text, reasoning, or the arguments of one tool call.

    Attributes:
        kind: The kind of output.
        text: Text, reasoning, or arguments as JSON.
        id: Id of a tool call.
        name: Name of the called tool.
        is_whole: Whether a tool call is complete.
        logprobs: Log probabilities of the tokens of a text, if the request asks for them.
    """

    kind: BlockKind
    text: str = ""
    id: str = ""
    name: str = ""
    is_whole: bool = True
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AssembledAnswer:
    """The blocks of an answer; ``add`` appends an item.

    Attributes:
        blocks: The output in order.
        started: The item that reports the length of the prompt.
        ending: The last item.
        vectors: Of a stored answer; no item carries them.
    """

    blocks: list[Block] = field(default_factory=list)
    started: Started | None = None
    ending: Finished | Failed | None = None
    vectors: Vectors | None = None

    @classmethod
    def from_stored(cls, view: Job, stored: StoredAnswer) -> Self:
        """Return the answer of a completed job.

        Args:
            view: The row of the job.
        """
        answer = cls(vectors=stored.vectors)
        answer.blocks += map(_block, stored.parts())
        answer.ending = Finished(
            stop_reason=StopReason(view.stop_reason or StopReason.END_TURN),
            usage=view.usage,
            stop_sequence=view.stop_sequence,
        )
        return answer

    def add(self, item: StreamItem) -> None:
        """Append the next item."""
        body = item.body
        match body:
            case Started():
                self.started = body
            case Text():
                self._extend("text", body.text, body.logprobs)
            case Thinking():
                self._extend("thinking", body.text)
            case ToolStart():
                call = Block(kind="tool", id=body.id, name=body.name, is_whole=False)
                self.blocks.append(call)
            case ToolInput():
                self._extend("tool", body.fragment)
            case ToolEnd() if self.blocks:
                self.blocks[-1].is_whole = True
            case Finished() | Failed():
                self.ending = body
            case _:
                return  # progress carries no output

    def joined(self, kind: BlockKind) -> str:
        """Return the joined text of the blocks of one kind."""
        return "".join(block.text for block in self.blocks if block.kind == kind)

    def finished(self) -> Finished:
        """Return the end of a finished answer.

        Raises:
            TypeError: The answer has not finished.
        """
        if not isinstance(self.ending, Finished):
            msg = "only a finished answer can be assembled"
            raise TypeError(msg)
        return self.ending

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Log probabilities of the tokens of all texts."""
        return [value for block in self.blocks for value in block.logprobs]

    @property
    def tools(self) -> list[Block]:
        """The tool calls, in order."""
        return [block for block in self.blocks if block.kind == "tool"]

    def _extend(self, kind: BlockKind, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        if not text:
            return
        if not self.blocks or self.blocks[-1].kind != kind:
            self.blocks.append(Block(kind=kind))
        self.blocks[-1].text += text
        self.blocks[-1].logprobs += logprobs


def _block(part: Text | Thinking | EmittedCall) -> Block:
    match part:
        case Text(text=text, logprobs=logprobs):
            return Block(kind="text", text=text, logprobs=list(logprobs))
        case Thinking(text=text):
            return Block(kind="thinking", text=text)
        case EmittedCall():
            return Block(
                kind="tool",
                text=part.arguments,
                id=part.id,
                name=part.name,
                is_whole=part.is_complete,
            )


def ending_or_error(ending: Finished | Failed) -> Finished | SemanticError:
    """Return the end of a complete answer, or the error that the end stands for."""
    if isinstance(ending, Failed):
        return _error_of(ending)
    if ending.stop_reason is StopReason.CANCELLED:
        return GenerationCancelled("the generation was cancelled")
    return ending


def _error_of(ending: Failed) -> SemanticError:
    numbers = _PROMPT_TOO_LONG.fullmatch(ending.message)
    if ending.error == PromptTooLong.code and numbers:
        return PromptTooLong(int(numbers[1]), int(numbers[2]))
    if ending.error == PromptTooLong.code:
        return InvalidRequest(ending.message)
    kind = _ERRORS_BY_CODE.get(ending.error, EngineFailure)
    if kind in {ModelNotFound, ModelNotLoaded}:
        return kind.__new__(kind, ending.message)  # their ``__init__`` makes the message of names
    return kind(ending.message)


#: Ids of calls (``toolu_<job>_<n>``) and of items (``msg_<job>_<n>``, ``rs_…``, ``fc_…``,
#: ``ctc_…``, ``tsc_…``), and signatures of reasoning (``s1.<job>-<n>.…``).
_ANSWER_ID: Final = re.compile(r"(?:(?:toolu|msg|rs|fc|ctc|tsc)_|s1\.)([0-9a-f]{32})[_-]\d")


def origin_of(ids: Iterable[str | None]) -> str:
    """Return the job that the ids name; "" if they name none or several."""
    jobs = {found[1] for one in ids if one and (found := _ANSWER_ID.match(one))}
    return f"job-{jobs.pop()}" if len(jobs) == 1 else ""


def job_hex(job_id: JobId) -> str:
    """Return the hexadecimal part of a job id, which the ids of its answer carry."""
    return job_id.removeprefix("job-")


def unix_seconds(instant: str) -> int:
    """Return an RFC 3339 instant of the event log in Unix seconds."""
    return int(datetime.fromisoformat(instant).timestamp())
