"""What the protocols make of a job's items alike: blocks, the end, and typed failures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

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
from domain.errors import (
    EngineFailure,
    GenerationCancelled,
    InvalidRequest,
    LogUnavailable,
    ModelNotReady,
    Overloaded,
    PromptTooLong,
    QueueUnavailable,
    SemanticError,
    Unavailable,
)
from domain.values import StopReason

BlockKind = Literal["text", "thinking", "tool"]

_PROMPT_TOO_LONG = re.compile(r"prompt is too long: (\d{1,18}) tokens > (\d{1,18}) maximum")
_BY_CODE: Final[Mapping[str, type[SemanticError]]] = {
    cls.code: cls
    for cls in (
        EngineFailure,
        GenerationCancelled,
        InvalidRequest,
        LogUnavailable,
        ModelNotReady,
        Overloaded,
        QueueUnavailable,
        Unavailable,
    )
}


@dataclass(slots=True, kw_only=True)
class Block:
    """A run of one kind: a text, some reasoning, or the arguments of one tool call.

    ``is_whole`` says of a call whether it came to its end, ``logprobs`` of a text how likely its
    tokens were, where that was asked for.
    """

    kind: BlockKind
    text: str = ""
    id: str = ""
    name: str = ""
    is_whole: bool = True
    logprobs: list[TokenLogprob] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class AssembledAnswer:
    """What the items said, in blocks; grows by ``add``."""

    blocks: list[Block] = field(default_factory=list)
    started: Started | None = None
    ending: Finished | Failed | None = None

    def add(self, item: StreamItem) -> None:
        """Take the next item in."""
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
                return  # progress adds nothing to the whole

    def joined(self, kind: BlockKind) -> str:
        """Return all text of one kind."""
        return "".join(block.text for block in self.blocks if block.kind == kind)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """How likely the tokens of the texts were, where that was asked for."""
        return [value for block in self.blocks for value in block.logprobs]

    @property
    def tools(self) -> list[Block]:
        """The calls, in order."""
        return [block for block in self.blocks if block.kind == "tool"]

    def _extend(self, kind: BlockKind, text: str, logprobs: Sequence[TokenLogprob] = ()) -> None:
        if not text:
            return
        if not self.blocks or self.blocks[-1].kind != kind:
            self.blocks.append(Block(kind=kind))
        self.blocks[-1].text += text
        self.blocks[-1].logprobs += logprobs


def assemble_answer(items: Iterable[StreamItem]) -> AssembledAnswer:
    """Return what ``items`` add up to."""
    answer = AssembledAnswer()
    for item in items:
        answer.add(item)
    return answer


def ending_or_error(ending: Finished | Failed) -> Finished | SemanticError:
    """Return an ending that made an answer whole, or the failure that it stands for."""
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
    return _BY_CODE.get(ending.error, EngineFailure)(ending.message)
