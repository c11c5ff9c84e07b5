"""Stream items: the output of a running job, numbered so that each is delivered exactly once.

Numbered items are a pure function of the request, its seed and the model: started, then the
thinking, text and tool calls that the tokens decode to, then one terminal item. A second attempt of
the same model therefore continues the numbering, and one that lost the first items emits equal
items under equal numbers. An attempt of another model begins an epoch: it numbers from 0 again.
``Progress`` depends on the clock, so it has no number and is never stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from domain.chat.logprobs import TokenLogprob
from domain.values import StopReason, Usage, WaitingFor

#: Marks a field that is encoded only if it is not empty.
OPTIONAL: Final = "optional"


def _logprobs() -> tuple[TokenLogprob, ...]:
    return field(default=(), metadata={OPTIONAL: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The prompt is prepared and admitted; always item 0, emitted once per epoch."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of the queue or of the prefill; transient.

    Attributes:
        phase: Whether the job waits or its prompt is being computed.
        done: Computed tokens of the prompt; 0 while the job waits.
        total: Tokens to compute; while the job waits, the number of jobs that start before it.
        starts_in_s: Estimated seconds until the start of a waiting job, if known.
        finishes_in_s: Estimated seconds until the end of the job, if known.
        waiting_for: Why a waiting job does not run, if known.
        model: The model that it waits for, if it waits for one.
    """

    phase: Literal["queued", "prefill"]
    done: int
    total: int
    starts_in_s: float | None = None
    finishes_in_s: float | None = None
    waiting_for: WaitingFor | None = None
    model: str = field(default="", metadata={OPTIONAL: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thinking:
    """A piece of reasoning, with the tokens consumed since the item before.

    ``later`` has, here and below, values for the ``Text.logprobs`` of a later item.
    """

    text: str
    ids: tuple[int, ...]
    later: tuple[TokenLogprob, ...] = _logprobs()


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A piece of the answer, with the tokens consumed since the item before.

    Attributes:
        ids: The tokens.
        logprobs: Of the tokens whose text begins here, if the request asks for them. These may
            differ from ``ids``: some text is held back until its kind is known.
        later: Of those of ``ids`` whose text is held back. They may turn out not to be part of the
            answer; an attempt that continues it needs them.
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
    """The job completed or was cancelled; terminal.

    Attributes:
        at: RFC 3339 instant of that event in the log.
    """

    stop_reason: StopReason
    usage: Usage
    stop_sequence: str | None = None
    at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The job failed; terminal. ``error`` is a ``code`` of ``domain.errors``."""

    error: str
    message: str
    retryable: bool


Body = Started | Progress | Thinking | Text | ToolStart | ToolInput | ToolEnd | Finished | Failed


def is_output(body: Body) -> bool:
    """Whether an item carries a part of the answer."""
    return isinstance(body, Thinking | Text | ToolStart | ToolInput | ToolEnd)


def ids_of(body: Body) -> tuple[int, ...]:
    """Return the tokens that an item carries."""
    if isinstance(body, Started | Progress | Finished | Failed):
        return ()
    return body.ids


def logprobs_of(body: Body) -> tuple[TokenLogprob, ...]:
    """Return all log-probabilities that an item carries, in no order."""
    if isinstance(body, Started | Progress | Finished | Failed):
        return ()
    return (*body.logprobs, *body.later) if isinstance(body, Text) else body.later


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamItem:
    """A body with its place in the stream.

    Attributes:
        n: Number from 0 without gaps over an epoch of the job; ``None`` for a transient item.
        attempt: The attempt that emitted it, from 1.
        epoch: Epoch of its attempt; see ``Job.epoch``. Items of two epochs are of two answers.
    """

    n: int | None
    attempt: int
    body: Body
    epoch: int = 1

    @property
    def is_terminal(self) -> bool:
        """Whether it is the last item of the job."""
        return isinstance(self.body, Finished | Failed)
