"""Stream items: what a job says while it runs, numbered so that nothing is lost or said twice.

Numbered items are a pure function of the request and its seed: started, then the thinking, text
and tool calls that the tokens decode to, then one terminal item. A second attempt therefore
continues the numbering, and even one that lost the first items says the same things under the same
numbers. ``Progress`` depends on the clock, so it has no number and is never stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from domain.chat.logprobs import TokenLogprob
from domain.values import StopReason, Usage

#: Marks a field that is not written while it is empty: hardly any job has it.
OPTIONAL: Final = "optional"


def _logprobs() -> tuple[TokenLogprob, ...]:
    return field(default=(), metadata={OPTIONAL: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The prompt is known and admitted; always item 0, said once per job."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far queueing or prefill has come; transient.

    Attributes:
        phase: What goes on.
        done: Tokens of the prompt that are read; 0 while it waits.
        total: Tokens to read; while it waits, how many begin before it.
        starts_in_s: Estimate of when it begins, if it waits and that is known.
        finishes_in_s: Estimate of when it is done, if that is known.
    """

    phase: Literal["queued", "prefill"]
    done: int
    total: int
    starts_in_s: float | None = None
    finishes_in_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """A piece of reasoning, with the tokens consumed since the item before.

    ``later`` is here and below what ``Text.logprobs`` of a later item may tell of these tokens.
    """

    text: str
    ids: tuple[int, ...]
    later: tuple[TokenLogprob, ...] = _logprobs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A piece of the answer, with the tokens consumed since the item before.

    Attributes:
        text: What is said.
        ids: The tokens.
        logprobs: Of the tokens whose text begins here, where they were asked for. Those need not
            be ``ids``: some text is held back until it is known what it is.
        later: Of those of ``ids`` whose text is held back now. They may turn out to be no part of
            the answer; whoever continues it needs them.
    """

    text: str
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = _logprobs()
    later: tuple[TokenLogprob, ...] = _logprobs()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStart:
    """A tool call begins; its id is made of the job and its place in the answer."""

    id: str
    name: str
    ids: tuple[int, ...] = ()
    later: tuple[TokenLogprob, ...] = _logprobs()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInput:
    """A fragment of the JSON arguments of the open tool call."""

    fragment: str
    ids: tuple[int, ...]
    later: tuple[TokenLogprob, ...] = _logprobs()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEnd:
    """Nothing more belongs to the open tool call; one that was cut off has no such item."""

    ids: tuple[int, ...] = ()
    later: tuple[TokenLogprob, ...] = _logprobs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The job completed or was cancelled; terminal."""

    stop_reason: StopReason
    usage: Usage
    stop_sequence: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job failed; terminal. ``error`` is a ``code`` of ``domain.errors``."""

    error: str
    message: str
    retryable: bool


Body = Started | Progress | Thinking | Text | ToolStart | ToolInput | ToolEnd | Finished | Failed


def ids_of(body: Body) -> tuple[int, ...]:
    """Return the tokens that an item carries."""
    match body:
        case Thinking() | Text() | ToolStart() | ToolInput() | ToolEnd():
            return body.ids
        case _:
            return ()


def logprobs_of(body: Body) -> tuple[TokenLogprob, ...]:
    """Return all that an item knows of the likelihood of tokens, in no order."""
    match body:
        case Text():
            return (*body.logprobs, *body.later)
        case Thinking() | ToolStart() | ToolInput() | ToolEnd():
            return body.later
        case _:
            return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamItem:
    """A body with its place in the stream.

    Attributes:
        n: Number from 0 without gaps over the life of the job; ``None`` for a transient item.
        attempt: The attempt that said it, from 1.
        body: What was said.
    """

    n: int | None
    attempt: int
    body: Body

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        return isinstance(self.body, Finished | Failed)
