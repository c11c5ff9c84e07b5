"""OpenAI's chat and text completions: the answers of one or several jobs as one completion.

A ``CompletionKind`` is the difference: the parser of the request and the form of a choice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

from api.app import App
from api.dialects.generate import ATTACHED_HEADER, attempt_facts, first_item
from api.dialects.openai_chat.bodies import CompletionParameters, OpenAIUsage
from api.dialects.parsing import agent_of, repeat_for_answers
from api.errors import error_body
from api.generation import (
    AssembledAnswer,
    ChoiceItem,
    ParsedRequest,
    RequestDefaults,
    ending_or_error,
    job_hex,
)
from api.http.messages import JOB_HEADER, Dialect, Reply, Request, StreamReply, json_reply
from api.http.sse import Comment, Frame, Part
from api.streaming.answers import (
    OTHER_FAILED,
    JobStream,
    MergedItems,
    abandoned_on_error,
    collect_jobs,
)
from api.submit import open_answers
from domain.chat.items import Body, Failed, Finished
from domain.chat.request import ChatRequest
from domain.errors import InvalidRequest, SemanticError
from domain.values import JobId, StopReason, Usage

_FINISH_REASONS: Final[Mapping[StopReason, str]] = {
    StopReason.END_TURN: "stop",
    StopReason.STOP_SEQUENCE: "stop",
    StopReason.MAX_TOKENS: "length",
    StopReason.CONTEXT_WINDOW: "length",
    StopReason.CANCELLED: "stop",
}

Choice = Mapping[str, Any]


class CompletionKind(ABC):
    """Chat or text completions: renders the answer of one job as choices of one index.

    Attributes:
        protocol: Name in the log.
        whole: ``object`` of a whole completion.
        chunk: ``object`` of a chunk.
    """

    protocol: ClassVar[str]
    id_prefix: ClassVar[str]
    whole: ClassVar[str]
    chunk: ClassVar[str]

    def __init__(self, index: int) -> None:
        self._index = index

    @staticmethod
    @abstractmethod
    def parse(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
        """Parse the body of a request; see ``RequestParser``."""

    def open(self) -> list[Choice]:
        """Return the choices before the first item: none where the first text is the first one."""
        return []

    @abstractmethod
    def render(self, body: Body) -> list[Choice]:
        """Return the choices of an item that is not the last one; may be none."""

    @abstractmethod
    def end(self, ending: Finished) -> Choice:
        """Return the choice with the finish reason."""

    @abstractmethod
    def choice(self, answer: AssembledAnswer) -> Choice:
        """Return the choice of a finished answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionEnvelope:
    """The members of a completion other than its choices and its usage.

    Attributes:
        jobs: One job for each choice, in order; the first one gives the completion its id.
        created: Unix seconds.
        answers_each: Number of consecutive jobs with one prompt, which the usage counts once.
    """

    kind: type[CompletionKind]
    jobs: tuple[JobId, ...]
    model: str
    created: int
    answers_each: int = 1

    def members(self, object_name: str) -> dict[str, Any]:
        """Return the members that a completion and its chunks share."""
        return {
            "id": f"{self.kind.id_prefix}{job_hex(self.jobs[0])}",
            "object": object_name,
            "created": self.created,
            "model": self.model,
        }


class CompletionEncoder:
    """Encodes the items of all jobs as chunks.

    Args:
        include_usage: Whether a last chunk carries the token counts.
    """

    def __init__(
        self, envelope: CompletionEnvelope, *, include_usage: bool, request_id: str
    ) -> None:
        self._members = envelope.members(envelope.kind.chunk)
        self._answers_each = envelope.answers_each
        self._renderers = [envelope.kind(index) for index in range(len(envelope.jobs))]
        self._usages: dict[int, Usage] = {}
        self._include_usage = include_usage
        self._request_id = request_id

    def open(self) -> list[Part]:
        """Return the first chunk of each choice, a comment if the kind has none."""
        choices = [choice for renderer in self._renderers for choice in renderer.open()]
        chunks: list[Part] = [self._chunk(choice) for choice in choices]
        return chunks or [Comment("begun")]

    def item(self, item: ChoiceItem) -> list[Part]:
        """Return the chunks of an item."""
        body = item.item.body
        if isinstance(body, Finished | Failed):
            return self._end(item.choice, body)
        return [self._chunk(one) for one in self._renderers[item.choice].render(body)]

    def ping(self) -> list[Part]:
        """Return a comment: the protocol has no ping event."""
        return [Comment("ping")]

    def fail(self, error: SemanticError) -> list[Part]:
        """Return the last event of a failed stream."""
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
    """Return the completion of finished answers.

    Args:
        answers: The answer of each job, with a ``Finished`` ending.
    """
    usages = [answer.finished().usage for answer in answers]
    return envelope.members(envelope.kind.whole) | {
        "choices": [envelope.kind(index).choice(one) for index, one in enumerate(answers)],
        "usage": openai_usage(total_usage(usages, envelope.answers_each)),
    }


def finish_reason(ending: Finished, *, called: bool = False) -> str:
    """Return the finish reason of an answer; ``called`` if it contains a tool call."""
    if called and ending.stop_reason is StopReason.END_TURN:
        return "tool_calls"
    return _FINISH_REASONS[ending.stop_reason]


def total_usage(usages: Sequence[Usage], answers_each: int) -> Usage:
    """Return the token counts of several jobs; as at the vendor, each prompt counts once.

    Args:
        usages: Token counts of the jobs; jobs of one prompt are consecutive.
    """
    prompts = [
        usages[first : first + answers_each] for first in range(0, len(usages), answers_each)
    ]
    return Usage(
        prompt_tokens=sum(same[0].prompt_tokens for same in prompts),
        # The first job of a prompt fills the cache for the others, so its hit is the smallest.
        cached_tokens=sum(min(one.cached_tokens for one in same) for same in prompts),
        completion_tokens=sum(one.completion_tokens for one in usages),
        reasoning_tokens=sum(one.reasoning_tokens for one in usages),
    )


def openai_usage(usage: Usage) -> OpenAIUsage:
    """Return token counts in the shape of this dialect."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


#: Most answers of one request, over all of its prompts; each is a job.
CHOICES_MAX: Final = 128


def completion_request(
    wire: CompletionParameters, prompts: Sequence[ChatRequest], headers: Mapping[str, str]
) -> ParsedRequest:
    """Return a request for ``n`` answers to each prompt.

    Raises:
        InvalidRequest: The request asks for more than ``CHOICES_MAX`` answers.
    """
    answers = wire.n or 1
    if len(prompts) * answers > CHOICES_MAX:
        msg = f"{len(prompts)} prompts with {answers} answers each; {CHOICES_MAX} answers at most"
        raise InvalidRequest(msg, field="n")
    chat, *more = (one for prompt in prompts for one in repeat_for_answers(prompt, answers))
    return ParsedRequest(
        chat=chat,
        more=tuple(more),
        answers_each=answers,
        stream=bool(wire.stream),
        include_usage=bool(wire.stream_options and wire.stream_options.include_usage),
        agent=agent_of(headers, session=wire.session_id, cache_key=wire.prompt_cache_key),
        seeded=wire.seed is not None,
        unknown=wire.unknown,
    )


async def create_completion(
    app: App, request: Request, kind: type[CompletionKind]
) -> Reply | StreamReply:
    """Answer a turn or a text, once or several times; the reply repeats the model name."""
    parse = partial(kind.parse, request.body, request.headers, app.defaults)
    parsed, jobs = await open_answers(app, parse, request, protocol=kind.protocol)
    envelope = CompletionEnvelope(
        kind=kind,
        jobs=tuple(job.id for job in jobs),
        model=parsed.chat.model,
        created=int(app.clock.now().timestamp()),
        answers_each=parsed.answers_each,
    )
    headers = {JOB_HEADER: ", ".join(envelope.jobs)}
    attached = [job.attached for job in jobs if job.attached is not None]
    if attached:
        headers[ATTACHED_HEADER] = attached[0]
    if not parsed.stream:
        answers = await collect_jobs(jobs)
        headers |= (await attempt_facts(jobs[0].id, answers[0].started, app)).headers
        return json_reply(assemble(envelope, answers), headers=headers)
    async with abandoned_on_error(jobs, refusal=OTHER_FAILED):
        started = await first_item(jobs[0], app.opening_s)
        for job in jobs[1:]:
            # Its failure is raised; it may wait until the first has ended: only stored items count.
            await first_item(job, 0)
        headers |= (await attempt_facts(jobs[0].id, started, app)).headers
    encoder = CompletionEncoder(envelope, include_usage=parsed.include_usage, request_id=request.id)
    pieces = JobStream(MergedItems(jobs), encoder, ping_s=app.ping_s)
    return StreamReply(pieces=pieces, headers=headers)
