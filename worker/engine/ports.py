"""What the scheduling side asks of the side that computes.

``ModelRunner`` belongs to the engine thread from ``load`` on. What ``load`` returns may be used
from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from domain.chat.generation import PreparedPrompt
from domain.chat.request import ChatRequest
from domain.errors import EngineFailure
from domain.values import ModelCard, Sampling
from worker.engine.grammar.ports import Constraint
from worker.engine.output.channel_format import ChannelFormat
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.output_parser import ThinkTags
from worker.engine.output.tool_calls.reader import ToolFormat


class ModelLoadError(EngineFailure):
    """The model cannot be served; says what was tried."""

    code = "model_load_failed"


class Finish(StrEnum):
    """Why a runner ended a sequence by itself."""

    #: The token is one of the model's end-of-turn tokens.
    END = "end"
    #: The limit of tokens is reached; the token counts.
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A sequence that joins the batch.

    Attributes:
        tokens: Everything to compute before the first new token, at least one id.
        first_index: Index in the generation of the first new token, for the sampler.
        max_new_tokens: At least 1.
        sampling: How to draw.
        label: Whose it is, for what is told about it.
        arrival: Its place among all that ever came; the youngest has to give way first.
        constraint: What its tokens are held to; knows every token of the answer so far.
        logprobs: How many of the likeliest tokens to tell at each place; ``None`` for nothing.
    """

    tokens: Sequence[int]
    first_index: int
    max_new_tokens: int
    sampling: Sampling
    label: str = ""
    arrival: int = 0
    constraint: Constraint | None = None
    logprobs: int | None = None


class TokenLikelihood(NamedTuple):
    """How likely a network thought a token, before any rule of drawing; natural logarithms.

    Attributes:
        logprob: Of the token that was drawn.
        top: The likeliest ids with theirs, likeliest first, of equals the lowest id first. Which
            of some equals is the last one that is told is left open.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that has joined the batch.

    Attributes:
        uid: Its name in the batch.
        cached_tokens: How many of the first tokens of its admission need not be computed.
        block_tokens: Tokens of the blocks in which what it computes is kept; 0 if nothing is.
    """

    uid: int
    cached_tokens: int = 0
    block_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """A sequence that failed alone and has left.

    Attributes:
        uid: Its name in the batch.
        error: Why.
        retryable: Whether it may succeed next time.
    """

    uid: int
    error: Exception
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step of the batch brought.

    Attributes:
        tokens: ``(uid, token, finish)`` of every sequence that decodes; a finished one has left.
        prefilled: ``(uid, done, total)`` of every sequence whose prompt advanced; what it did not
            have to compute counts as done.
        faults: Sequences that failed alone.
        preempted: Sequences that had to leave for lack of memory; they go on from where they are
            once there is room, and a step before this one returned their last token.
        likelihoods: By uid, those of ``tokens`` whose sequences asked for them.
    """

    tokens: Sequence[tuple[int, int, Finish | None]]
    prefilled: Sequence[tuple[int, int, int]] = ()
    faults: Sequence[Fault] = ()
    preempted: Sequence[int] = ()
    likelihoods: Mapping[int, TokenLikelihood] = field(default_factory=dict)


class CachedPrefix(NamedTuple):
    """How much of a prompt need not be computed, and where it is.

    Attributes:
        tokens: How many of its first tokens.
        source: ``none``, ``ram`` or ``disk``; the last if any of it is only there.
    """

    tokens: int = 0
    source: str = "none"


class RenderedPrompt(NamedTuple):
    """A request as the model reads it.

    Attributes:
        tokens: The prompt's ids.
        opened: Its last part as text, where that is the beginning of the answer.
        echoed: All of it as text, where the answer is to begin with it.
    """

    tokens: tuple[int, ...]
    opened: str = ""
    echoed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """What a loaded model offers to any thread.

    Attributes:
        card: How it presents itself.
        think_tags: How it marks reasoning, if it does.
        render: From a request to its prompt; raises ``InvalidRequest``.
        opens_thinking: Whether a prompt ends inside a reasoning section.
        tool_format: How it writes tool calls, if it can.
        channel_format: How it frames the messages of an answer, if it does; there are no tags then.
        dropped: Marks around its text that are no part of it, where it has tags.
        detokenizer: Makes a fresh one.
        sampling: How it draws where the caller does not say; its seed means nothing.
        cached_prefix: How much of a prompt need not be computed as things stand now.
        constraint: What the answer to a prompt is held to, ``None`` if it may say anything; raises
            ``InvalidRequest`` if the caller wants none rather than less than was asked.
        token_bytes: The bytes that a token adds to a text; none for an id that is no token.
    """

    card: ModelCard
    think_tags: ThinkTags | None
    render: Callable[[ChatRequest], RenderedPrompt]
    opens_thinking: Callable[[Sequence[int]], bool]
    detokenizer: Callable[[], Detokenizer]
    sampling: Sampling = Sampling()
    tool_format: ToolFormat | None = None
    channel_format: ChannelFormat | None = None
    dropped: tuple[str, ...] = ()
    cached_prefix: Callable[[Sequence[int]], CachedPrefix] = lambda _: CachedPrefix()
    constraint: Callable[[PreparedPrompt], Constraint | None] = lambda _: None
    token_bytes: Callable[[int], bytes] = lambda _: b""


class ModelRunner(Protocol):
    """A batch of sequences on a loaded model. Not thread-safe."""

    def load(self) -> LoadedModel:
        """Load weights and tokenizer; call first, once.

        Raises:
            ModelLoadFailed: Saying what was tried.
        """
        ...

    def must_wait(self, admission: Admission) -> bool:
        """Tell whether what this one could start from is about to be there.

        A running sequence computes it, or it is being read from the disk, also while nothing runs:
        ask again soon. It becomes false within a bounded time.
        """
        ...

    def insert(self, admission: Admission) -> Admitted | None:
        """Let a sequence join at the next step, or return ``None`` if there is no room now.

        There is room, at the latest, soon after all others have left. Any exception concerns this
        sequence alone and leaves the batch as it was.
        """
        ...

    def step(self) -> StepResult:
        """Decode one token of every running sequence, and perhaps read a piece of a prompt before.

        An exception concerns the whole batch; ``reset`` must follow.
        """
        ...

    def remove(self, uid: int) -> None:
        """Take a sequence out; one that has left already is ignored."""
        ...

    def reset(self) -> None:
        """Drop every sequence and start an empty batch."""
        ...

    def close(self) -> None:
        """Free what the model holds."""
        ...
