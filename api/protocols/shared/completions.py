"""OpenAI's completions, of chats and of texts: the answers of one or several jobs as one.

The two differ in what a choice looks like and in how a request is read; ``CompletionKind`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from api.errors import error_body
from api.http.messages import Dialect
from api.http.sse import Comment, Frame, Part
from api.protocols.shared.answer import AssembledAnswer, ending_or_error
from api.protocols.shared.answer_ids import job_hex
from api.protocols.shared.parsed_request import ParsedRequest
from api.schemas.replies import OpenAIUsage
from domain.chat.items import Body, Failed, Finished, StreamItem
from domain.errors import SemanticError
from domain.values import JobId, StopReason, Usage

_FINISH_REASONS: Final[Mapping[StopReason, str]] = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.MAX_TOKENS: "length",
    StopReason.CONTEXT_WINDOW: "length",
    StopReason.CANCELLED: "stop",
}

Choice = Mapping[str, Any]


class ChoiceRenderer(Protocol):
    """From what one job says to the choices that tell it; one for each job of a stream."""

    def open(self) -> list[Choice]:
        """Return what is told before anything is said."""
        ...

    def render(self, body: Body) -> list[Choice]:
        """Return what an item calls for, the last one excepted; may be nothing."""
        ...

    def end(self, ending: Finished) -> Choice:
        """Return the choice that says why the answer ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionKind:
    """What tells the two kinds of completions apart.

    Attributes:
        protocol: What the log calls it.
        id_prefix: What ids begin with.
        whole: ``object`` of a whole completion.
        chunk: ``object`` of a piece of one.
        parse: From a body to a request; takes ``ids``, ``max_tokens_default`` and
            ``efforts``.
        voice: Makes the choices of a stream from the place of their job.
        choice: Makes the choice of a whole answer from the place of its job.
        max_tokens_default: Where the request sets no limit; ``None`` for the service's own.
    """

    protocol: str
    id_prefix: str
    whole: str
    chunk: str
    parse: Callable[..., ParsedRequest]
    choice_renderer: Callable[[int], ChoiceRenderer]
    choice: Callable[[int, AssembledAnswer], Choice]
    max_tokens_default: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionEnvelope:
    """What is known of a completion before its first item.

    Attributes:
        kind: Which of the two.
        jobs: One for each choice, in order; the first one names the completion.
        model: As the caller wrote it.
        created: Unix seconds.
        answers_each: How many jobs in a row have one prompt, which is counted once.
    """

    kind: CompletionKind
    jobs: tuple[JobId, ...]
    model: str
    created: int
    answers_each: int = 1

    def members(self, object_name: str) -> dict[str, Any]:
        """Return the members that a completion and its pieces share."""
        return {
            "id": f"{self.kind.id_prefix}{job_hex(self.jobs[0])}",
            "object": object_name,
            "created": self.created,
            "model": self.model,
        }


@dataclass(frozen=True, slots=True)
class ChoiceItem:
    """An item of one of the jobs of a completion.

    Attributes:
        choice: Place of its job.
        item: What it said.
        is_terminal: Whether nothing follows, from this job or from any other.
    """

    choice: int
    item: StreamItem
    is_terminal: bool = False

    @property
    def n(self) -> int | None:
        """Its number in the stream of its job."""
        return self.item.n


class CompletionEncoder:
    """From the items of all jobs to chunks.

    Args:
        envelope: What is known of the completion.
        include_usage: Whether a last chunk carries the token counts.
        request_id: For error events.
    """

    def __init__(
        self, envelope: CompletionEnvelope, *, include_usage: bool, request_id: str
    ) -> None:
        self._members = envelope.members(envelope.kind.chunk)
        self._answers_each = envelope.answers_each
        self._renderers = [
            envelope.kind.choice_renderer(index) for index in range(len(envelope.jobs))
        ]
        self._usages: dict[int, Usage] = {}
        self._include_usage = include_usage
        self._request_id = request_id

    def open(self) -> list[Part]:
        """Return the first chunk of each choice, or a comment where there is none."""
        chunks: list[Part] = [self._chunk(one) for voice in self._renderers for one in voice.open()]
        return chunks or [Comment("begun")]

    def item(self, item: ChoiceItem) -> list[Part]:
        """Return the chunks that an item calls for."""
        body = item.item.body
        if isinstance(body, Finished | Failed):
            return self._end(item.choice, body)
        return [self._chunk(one) for one in self._renderers[item.choice].render(body)]

    def ping(self) -> list[Part]:
        """Return a comment: this protocol has no event for it."""
        return [Comment("ping")]

    def fail(self, error: SemanticError) -> list[Part]:
        """Return the terminal event of a stream that could not be finished."""
        return [Frame(data=error_body(error, Dialect.OPENAI, self._request_id))]

    def _end(self, choice: int, body: Finished | Failed) -> list[Part]:
        end = ending_or_error(body)
        if isinstance(end, SemanticError):
            return self.fail(end)
        parts: list[Part] = [self._chunk(self._renderers[choice].end(end))]
        self._usages[choice] = end.usage
        if len(self._usages) < len(self._renderers):
            return parts
        if self._include_usage:
            usages = [self._usages[place] for place in range(len(self._renderers))]
            usage = openai_usage(total_usage(usages, self._answers_each))
            parts.append(Frame(data=self._members | {"choices": [], "usage": usage}))
        return [*parts, Frame(data="[DONE]")]

    def _chunk(self, choice: Choice) -> Frame:
        usage = {"usage": None} if self._include_usage else {}
        return Frame(data=self._members | {"choices": [choice]} | usage)


def assemble(envelope: CompletionEnvelope, answers: Sequence[AssembledAnswer]) -> dict[str, Any]:
    """Return the whole completion of answers that finished.

    Args:
        envelope: What is known of the completion.
        answers: One for each job, with a ``Finished`` ending.
    """
    usages = [finished(answer).usage for answer in answers]
    return envelope.members(envelope.kind.whole) | {
        "choices": [envelope.kind.choice(index, answer) for index, answer in enumerate(answers)],
        "usage": openai_usage(total_usage(usages, envelope.answers_each)),
    }


def finished(answer: AssembledAnswer) -> Finished:
    """Return the proper end of an answer.

    Raises:
        TypeError: It has none.
    """
    if not isinstance(answer.ending, Finished):
        msg = "only a finished answer can be assembled"
        raise TypeError(msg)
    return answer.ending


def finish_reason(ending: Finished, *, called: bool = False) -> str:
    """Return why an answer ended, in this dialect's words."""
    if called and ending.stop_reason is StopReason.END_TURN:
        return "tool_calls"
    return _FINISH_REASONS[ending.stop_reason]


def total_usage(usages: Sequence[Usage], answers_each: int) -> Usage:
    """Return what several jobs took together; as the vendor counts, each prompt once.

    Args:
        usages: Of the jobs, those of one prompt in a row.
        answers_each: How many those are.
    """
    prompts = [
        usages[first : first + answers_each] for first in range(0, len(usages), answers_each)
    ]
    return Usage(
        prompt_tokens=sum(same[0].prompt_tokens for same in prompts),
        # Whichever came first computed for the others: what it found is what was there before.
        cached_tokens=sum(min(one.cached_tokens for one in same) for same in prompts),
        completion_tokens=sum(one.completion_tokens for one in usages),
        reasoning_tokens=sum(one.reasoning_tokens for one in usages),
    )


def openai_usage(usage: Usage) -> OpenAIUsage:
    """Return token counts in this dialect's shape."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
