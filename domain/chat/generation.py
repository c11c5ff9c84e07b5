"""What a generation may do and has emitted, with the limit of its reasoning."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from domain.chat.embedding import Vectors
from domain.chat.images import PromptImage
from domain.chat.items import Failed
from domain.chat.logprobs import TokenLogprob
from domain.values import (
    JobId,
    Owner,
    Priority,
    PromptEncoding,
    Sampling,
    StopReason,
    Timings,
    Usage,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """On whose behalf a prompt is prepared.

    Attributes:
        owner: The key, ``None`` without keys.
        is_cancelled: Whether the answer is no longer wanted; any thread may call it.
    """

    owner: Owner | None = None
    is_cancelled: Callable[[], bool] = lambda: False


#: The claim of a prompt without a job.
NO_CLAIM: Final = Claim()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPrompt:
    """A request as the model reads it.

    Attributes:
        tokens: Ids of the rendered prompt, at least one.
        cached_tokens: How many of them the cache held when the prompt was prepared. The usage of
            the outcome has the number that was reused.
        cache_source: ``none``, ``ram`` or ``disk``.
        max_tokens: The caller's limit, lowered to the room in the context.
        sampling: The caller's values over the model's defaults.
        opened: The end of the prompt, if the answer begins with it: the start of a forced call.
        tools: The callable tools, in function format; if empty, text of calls stays text.
        single_call: Whether the answer is over after the first call.
        answer_schema: JSON schema that the answer is to match; an empty one asks for any object.
        is_strict: Whether a schema that cannot be kept is an error.
        strict_tools: Names of the tools whose schema must be kept or the request refused.
        thinking: Whether the model may reason before it answers.
        logprobs: Number of top alternatives to return per token; ``None`` for no
            log-probabilities at all.
        is_scored: Whether the log-probabilities of its own tokens are returned, with ``echoed``.
        is_raw: Whether all of the answer is text: no reasoning, no calls.
        echoed: Text that the answer begins with, before the first generated token.
        thinking_limit: Tokens of reasoning after which it is closed, ``None`` for any number.
        message_starts: Known positions among the tokens at which messages begin, ascending; the
            first one is the end of tools and system prompt.
        last_message: Position at which the last message begins, or a few tokens before; 0 if it is
            not known.
        known_tokens: Tokens that the cache knew, also those after the checkpoint from which
            windows and states go on.
        lengths: Of a request for vectors: how many of the tokens belong to each text, in order.
        dimensions: Elements of each vector; 0 for none.
        images: Its images, in order.
    """

    tokens: tuple[int, ...]
    cached_tokens: int
    cache_source: str
    max_tokens: int
    sampling: Sampling
    opened: str = ""
    tools: tuple[Mapping[str, Any], ...] = ()
    single_call: bool = False
    answer_schema: Mapping[str, Any] | None = None
    is_strict: bool = False
    strict_tools: tuple[str, ...] = ()
    thinking: bool = False
    logprobs: int | None = None
    is_scored: bool = False
    is_raw: bool = False
    echoed: str = ""
    thinking_limit: int | None = None
    message_starts: tuple[int, ...] = ()
    last_message: int = 0
    known_tokens: int = 0
    encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT
    lengths: tuple[int, ...] = ()
    dimensions: int = 0
    images: tuple[PromptImage, ...] = field(default=(), repr=False)
    claim: Claim = field(default=NO_CLAIM, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationTask:
    """One attempt as the engine sees it.

    Attributes:
        emitted: Token ids that earlier attempts emitted; generation continues after them.
        stop: Texts that end the generation.
        known: Log-probabilities of ``emitted`` from earlier attempts, by index.
        published: How many of ``emitted`` are in items, where a fork took over others; else all.
        priority: Batch work waits for interactive work, and makes room for it.
        queued_ms: How long the job waited for this attempt, in milliseconds.
        agent: The job's agent, ``None`` for a job without one.
    """

    job_id: JobId
    attempt: int
    prompt: PreparedPrompt
    emitted: tuple[int, ...]
    first_item: int
    stop: tuple[str, ...]
    known: Mapping[int, TokenLogprob] = field(default_factory=dict)
    published: int | None = None
    priority: Priority = Priority.INTERACTIVE
    epoch: int = 1
    request_id: str = ""
    trace_id: str | None = None
    queued_ms: float = 0.0
    agent: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EmittedCall:
    """A tool call of an answer.

    Attributes:
        arguments: A JSON object, or the beginning of one if the call is not complete.
        is_complete: Whether the call was generated to its end.
    """

    id: str
    name: str
    arguments: str = ""
    is_complete: bool = False


@dataclass(frozen=True, slots=True)
class OutputRun:
    """Consecutive output of one kind.

    Attributes:
        length: Characters of text or reasoning, or number of tool calls.
        logprobs: Tokens of a text whose log-probabilities the answer has.
    """

    kind: Literal["text", "thinking", "tool"]
    length: int
    logprobs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a generation ended. ``failure`` is set if and only if it failed.

    Attributes:
        next_item: Number that the terminal item gets.
        token_ids: Every generated id over all attempts, stop tokens excluded.
        text: The whole answer, stop text excluded.
        calls: The tool calls, in order.
        logprobs: Of the tokens of ``text``; ``None`` where the request asks for none.
        vectors: Of the texts of a request for vectors.
        order: The order of text, reasoning and calls in the answer.
        stop_reason: ``CANCELLED`` if it was cancelled.
        stop_sequence: The stop text that ended it.
        usage: Token counts over all attempts.
        token_hash: SHA-256 over the ids, 4 bytes little-endian each.
        timings: ``queued_ms`` is left to the caller.
    """

    next_item: int
    token_ids: tuple[int, ...]
    text: str
    thinking: str
    stop_reason: StopReason
    stop_sequence: str | None
    usage: Usage
    token_hash: str
    timings: Timings
    failure: Failed | None = None
    calls: tuple[EmittedCall, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    vectors: Vectors | None = None
    order: tuple[OutputRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingLimit:
    """What reasoning may take before it is closed and the answer goes on; the lesser counts.

    It is part of the request in the log, so that each attempt and each replay closes the reasoning
    at the same token whatever the settings are by then.

    Attributes:
        tokens: Most tokens, the tags around it included; ``None`` if the caller set no budget.
        share: Most of the tokens that may be generated, in [0, 1]; 1 limits nothing.
    """

    tokens: int | None = None
    share: float = 1.0

    def within(self, max_tokens: int) -> int | None:
        """Return the limit of an answer of so many tokens, ``None`` if there is none."""
        limits = [] if self.tokens is None else [self.tokens]
        if self.share < 1:
            limits.append(math.floor(self.share * max_tokens))
        return min(limits, default=None)
