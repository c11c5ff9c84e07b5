"""A request of any dialect after parsing, and what its reasoning may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from api.http.bodies import MAX_TOKENS_CEILING, TOP_K_CEILING, WebhookBody
from domain.chat.generation import ThinkingLimit
from domain.chat.request import ChatRequest
from domain.ports import IdSource
from domain.values import SEED_MAX, AgentId, Priority, SamplingWish


@dataclass(frozen=True, slots=True, kw_only=True)
class Efforts:
    """Shares of an answer's token limit, each in [0, 1].

    The defaults of the lower efforts are those of the usual routers between these protocols; no
    vendor defines them. Every other effort may take all tokens except the share of the answer.

    Attributes:
        minimal: Share of reasoning at effort ``minimal``.
        low: Share of reasoning at effort ``low``.
        medium: Share of reasoning at effort ``medium``.
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

#: Reasoning efforts that the vendors define.
_EFFORTS: Final = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestDefaults:
    """Values for the fields that a request leaves open.

    Attributes:
        ids: Draws the seed.
        max_tokens: Token limit of the answer.
        model: Name of the model.
        efforts: Shares of the token limit that reasoning efforts get.
    """

    ids: IdSource
    max_tokens: int
    model: str = ""
    efforts: Efforts = Efforts()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedRequest:
    """A request in the domain's terms, and the form of its reply.

    Attributes:
        chat: The generation, with its seed drawn.
        stream: Whether the reply is a stream.
        include_usage: Whether an OpenAI stream ends with a chunk of token counts.
        priority: The queue of the job.
        agent: The agent that the request names, if any.
        seeded: Whether the caller chose the seed.
        thinking: How much of the reasoning the reply shows.
        has_cache_control: Whether the request contains ``cache_control``.
        start_within_s: Seconds after which the job expires if it has not started.
        finish_within_s: Seconds after which the job expires if it has not finished.
        webhook: The webhook that reports the end of the job.
        wire: Fields of the request that the reply repeats, in the words of the dialect.
        more: Further generations of the same request; each becomes a job.
        answers_each: Number of consecutive generations in ``chats`` with the same prompt.
        names_model: Whether the caller named a model; otherwise the loaded one answers.
    """

    chat: ChatRequest
    stream: bool = False
    include_usage: bool = False
    priority: Priority = Priority.INTERACTIVE
    agent: AgentId | None = None
    seeded: bool = False
    thinking: ThinkingShown = "none"
    has_cache_control: bool = False
    start_within_s: float | None = None
    finish_within_s: float | None = None
    webhook: WebhookBody | None = None
    wire: bytes | None = None
    more: tuple[ChatRequest, ...] = ()
    answers_each: int = 1
    names_model: bool = True

    @property
    def chats(self) -> tuple[ChatRequest, ...]:
        """All generations of the request, in the order of the answers."""
        return (self.chat, *self.more)

    @property
    def is_repeatable(self) -> bool:
        """Whether a second run of the request would give the same answer."""
        return self.seeded or self.chat.sampling.temperature == 0


class RequestParser(Protocol):
    """Parses the body of a request."""

    def __call__(
        self, body: bytes, headers: Mapping[str, str], defaults: RequestDefaults
    ) -> ParsedRequest:
        """Return the request.

        Args:
            body: The body of the request.
            headers: Headers by lower-case name.
            defaults: Values for open fields.

        Raises:
            InvalidRequest: The error names the first invalid field.
        """
        ...


class SamplingFields(Protocol):
    """Sampling parameters that every dialect has."""

    @property
    def temperature(self) -> float | None:
        """Temperature."""
        ...

    @property
    def top_p(self) -> float | None:
        """Nucleus sampling."""
        ...

    @property
    def top_k(self) -> int | None:
        """Most candidates per token."""
        ...


def sampling_of(
    fields: SamplingFields, seed: int | None, ids: IdSource, *, min_p: float | None = None
) -> SamplingWish:
    """Return the requested sampling, with a drawn seed if the request has none.

    Parameters that the request leaves out take the model's defaults later.

    Args:
        fields: Parameters of the request.
        seed: Seed of the request; the sign bit of a negative one is dropped.
        ids: Draws a missing seed.
        min_p: Least probability of a candidate, relative to the likeliest one.
    """
    return SamplingWish(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=None if fields.top_k is None else min(fields.top_k, TOP_K_CEILING),
        min_p=min_p,
        seed=ids.seed() if seed is None else seed & SEED_MAX,
    )


def clamp_max_tokens(wanted: int | None, default: int) -> int:
    """Return the token limit of the request, lowered to the ceiling if it is larger."""
    return min(wanted if wanted is not None else default, MAX_TOKENS_CEILING)


def effort_of(wanted: str | None) -> str | None:
    """Return the reasoning effort of a request, ``None`` if no vendor defines it."""
    return wanted if wanted in _EFFORTS else None


def repeat_for_answers(chat: ChatRequest, answers: int) -> tuple[ChatRequest, ...]:
    """Return a generation ``answers`` times with consecutive seeds.

    The first seed is the given one, so that the first answer equals the answer of a request for a
    single one.
    """
    first = chat.sampling
    return tuple(
        replace(chat, sampling=replace(first, seed=(first.seed + number) & SEED_MAX))
        for number in range(answers)
    )


def stop_texts(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the distinct stop texts in order, without empty ones."""
    texts = [stop] if isinstance(stop, str) else stop or ()
    return tuple(dict.fromkeys(text for text in texts if text))
