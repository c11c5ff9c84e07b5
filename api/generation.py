"""A request of any dialect after parsing, and its answer before encoding."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal, Self

from api.http.bodies import MAX_TOKENS_CEILING, START_AFTER_MAX_S, WebhookBody, without_effect
from domain.chat.embedding import Vectors
from domain.chat.generation import EmittedCall, ThinkingLimit
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
from domain.chat.request import ChatRequest
from domain.chat.schema_bounds import require_bounded_schemas
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
from domain.job.submit import Unique
from domain.ports import IdSource
from domain.values import AgentId, JobId, Predecessor, Priority, StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Efforts:
    """Shares of an answer's token limit, each in [0, 1].

    The defaults of the lower efforts are those of the usual routers between these protocols; no
    vendor defines them. Every other effort may take all tokens except the share of the answer.

    Attributes:
        answer: Share that every effort leaves to the answer.
    """

    minimal: float = 0.1
    low: float = 0.2
    medium: float = 0.5
    answer: float = 0.2

    def limit(
        self, effort: str | None, *, budget: int | None = None, forbidden: bool = False
    ) -> ThinkingLimit:
        """Return the limit of reasoning.

        Args:
            effort: Effort of the request; ``none`` forbids reasoning.
            budget: Most reasoning tokens of the request, if it sets a budget.
            forbidden: Whether the request turns reasoning off.
        """
        most = 1 - self.answer
        if forbidden or effort == "none":
            return ThinkingLimit(tokens=0, share=most)
        shares: Mapping[str | None, float] = {
            "minimal": self.minimal,
            "low": self.low,
            "medium": self.medium,
        }
        tokens = None if budget is None else min(budget, MAX_TOKENS_CEILING)
        return ThinkingLimit(tokens=tokens, share=min(shares.get(effort, most), most))


#: How much of the reasoning a reply shows; ``omitted`` reports its place without the text.
ThinkingShown = Literal["none", "omitted", "whole"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDefaults:
    """Values for the fields that a request leaves open.

    Attributes:
        ids: Draws the seed.
    """

    ids: IdSource
    max_tokens: int
    model: str = ""
    efforts: Efforts = Efforts()


Claim = Callable[[JobId], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A request in the domain's terms, and the form of its reply.

    Attributes:
        chat: The generation, with its seed drawn.
        include_usage: Whether an OpenAI stream ends with a chunk of token counts.
        seeded: Whether the caller chose the seed.
        start_after: Instant before which the job is held, or seconds from now.
        start_within_s: Seconds after which the job expires if it has not started.
        finish_within_s: Seconds after which the job expires if it has not finished.
        urgency: The highest is first among the waiting jobs of its line.
        wire: Fields of the request that the reply repeats, in the words of the dialect.
        more: Further generations of the same request; each becomes a job.
        answers_each: Number of consecutive generations in ``chats`` with the same prompt.
        names_model: Whether the caller named a model; otherwise the loaded one answers.
        unknown: Fields of the body that have no effect.
        claim: Makes the job a turn of ``agent``, which keeps its history; called once the job is in
            the log, and before it is enqueued.
    """

    chat: ChatRequest
    stream: bool = False
    include_usage: bool = False
    priority: Priority = Priority.INTERACTIVE
    agent: AgentId | None = None
    seeded: bool = False
    after: tuple[Predecessor, ...] = ()
    is_skippable: bool = False
    start_after: datetime | float | None = None
    start_within_s: float | None = None
    finish_within_s: float | None = None
    webhook: WebhookBody | None = None
    labels: tuple[str, ...] = ()
    unique: Unique | None = None
    urgency: int = 0
    wire: bytes | None = None
    more: tuple[ChatRequest, ...] = ()
    answers_each: int = 1
    names_model: bool = True
    unknown: tuple[str, ...] = ()
    claim: Claim | None = None

    @property
    def chats(self) -> tuple[ChatRequest, ...]:
        """All generations of the request, in the order of the answers."""
        return (self.chat, *self.more)

    @property
    def is_repeatable(self) -> bool:
        """Whether a second run of the request would give the same answer."""
        sampling = self.chat.sampling
        return self.seeded or (sampling.temperature == 0 and not sampling.xtc_probability)

    def warning(self) -> str | None:
        """Return what of the request has no effect, ``None`` if all of it has.

        Raises:
            InvalidRequest: The request demands a schema that cannot be enforced.
        """
        found = (*require_bounded_schemas(self.chat), without_effect(self.unknown))
        return "; ".join(one for one in found if one is not None) or None


def start_after_of(wish: datetime | float | None, now: datetime) -> datetime | None:
    """Return the instant before which work is held; ``None`` where it may start at once.

    Raises:
        InvalidRequest: The instant is too far away.
    """
    if wish is None:
        return None
    wait = wish - now if isinstance(wish, datetime) else timedelta(seconds=wish)
    if wait.total_seconds() > START_AFTER_MAX_S:
        msg = f"must be within {START_AFTER_MAX_S // 86_400} days from now"
        raise InvalidRequest(msg, field="start_after")
    return now + wait if wait > timedelta() else None


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
        text: Text, reasoning, or arguments as JSON.
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
        """Return the answer of a completed job."""
        answer = cls(vectors=stored.vectors)
        answer.blocks += map(_block, stored.parts())
        answer.ending = view.ending
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
            raise TypeError("only a finished answer can be assembled")
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


@dataclass(frozen=True, slots=True)
class ChoiceItem:
    """An item of one of the jobs of a completion.

    Attributes:
        choice: Index of the job.
        is_terminal: Whether it is the last item of all jobs.
    """

    choice: int
    item: StreamItem
    is_terminal: bool = False

    @property
    def n(self) -> int | None:
        """The number of the item in the stream of its job."""
        return self.item.n
