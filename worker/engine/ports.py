"""The port between the engine and the code that computes: ``ModelRunner`` and its values.

The engine thread alone calls a ``ModelRunner`` after ``load``. Any thread may use the
``LoadedModel`` that ``load`` returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from domain.chat.generation import PreparedPrompt
from domain.chat.images import PromptImage
from domain.chat.items import Failed
from domain.chat.request import ChatRequest
from domain.errors import EngineFailure, InvalidRequest
from domain.values import ModelCard, Priority, PromptEncoding, Sampling, WaitingFor
from worker.engine.grammar.ports import Constraint
from worker.engine.output.channel_parser import ChannelFormat, ChannelParser
from worker.engine.output.detokenizer import Detokenizer
from worker.engine.output.output_parser import AnswerParser, SectionParser, ThinkTags
from worker.engine.output.tool_calls.reader import CallRules, ToolFormat

#: Errors of a GPU and of its memory, by their text; MLX raises them as ``RuntimeError``. The texts
#: are those of mlx 0.32; none of them was seen on a Metal device by this project:
#:
#: - ``[METAL] Command buffer execution failed: …`` (``backend/metal/device.cpp``): out of memory,
#:   timeout, page fault. The buffers of that command may hold zeros (mlx issue 3979).
#: - ``[malloc] Unable to allocate …`` (``allocator.cpp`` of Metal and of CUDA).
#: - ``[metal::malloc] Resource limit (…) exceeded.`` and ``[metal::malloc] Attempting to allocate
#:   …`` (``backend/metal/allocator.cpp``).
#: - ``cudaMallocAsync(…) failed: out of memory`` and other calls of CUDA, cuBLAS and cuDNN
#:   (``backend/cuda``). After ``an illegal memory access`` (mlx issue 2821) every later call of the
#:   process fails.
_DEVICE_ERRORS = re.compile(
    r"\[METAL\] Command buffer execution failed"
    r"|\[malloc\] Unable to allocate"
    r"|\[metal::malloc\]"
    r"|^(?:cuda|cu(?=[A-Z])|cublas|cudnn)\w+.* failed(?::| with code)",
    re.DOTALL,
)


def is_device_error(error: BaseException) -> bool:
    """Return whether the device failed or is out of memory: what it holds cannot be trusted."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and _DEVICE_ERRORS.search(str(error)) is not None


def unknown_token(token: int, vocabulary: int) -> InvalidRequest:
    """Return the refusal of a bias of a token that a model lacks."""
    msg = f"logit_bias names the token {token}; this model has the tokens 0 to {vocabulary - 1}"
    return InvalidRequest(msg, field="logit_bias")


class ModelLoadError(EngineFailure):
    """The model cannot be loaded; the message lists what was tried."""

    code = "model_load_failed"


class Finish(StrEnum):
    """Why a runner finished a sequence."""

    #: The model sampled one of its end-of-turn tokens.
    END = "end"
    #: The sequence reached its limit of tokens; the last token is part of the answer.
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A sequence to insert into the batch.

    Attributes:
        tokens: Token ids before the first new token: the prompt and the tokens of earlier
            attempts; at least one.
        first_index: Index of the first new token in the generation; the sampler's randomness
            depends on it.
        max_new_tokens: Most tokens to generate, at least 1.
        label: The job's id, for logs.
        arrival: Number of the sequence in order of arrival; the youngest is preempted first.
        constraint: Masks the tokens that may not come next; has accepted all tokens so far.
        logprobs: Number of most likely tokens to report at each position; ``None`` reports no
            log probabilities.
        checkpoints: Positions among the tokens from which other sequences are likely to continue
            differently, ascending, each greater than 0 and less than ``len(tokens) - 1``.
        last_message: Position among the tokens at which the last message of the prompt begins; 0 if
            it is not known.
        agent: The job's agent, ``None`` for a job without one.
        is_alone: Whether no other prompt is prefilled in the same pass.
        is_cold: Whether nothing is restored: the cache's tokens could not be, or all are scored.
        is_scored: Whether ``StepResult.prompts`` has the log probabilities of ``tokens``. Such a
            sequence requests ``logprobs``, is cold and alone.
        priority: Batch work makes room for interactive work.
    """

    tokens: Sequence[int]
    first_index: int
    max_new_tokens: int
    sampling: Sampling
    label: str = ""
    arrival: int = 0
    constraint: Constraint | None = None
    logprobs: int | None = None
    checkpoints: tuple[int, ...] = ()
    last_message: int = 0
    agent: str | None = None
    is_alone: bool = False
    is_cold: bool = False
    is_scored: bool = False
    priority: Priority = Priority.INTERACTIVE
    images: tuple[PromptImage, ...] = ()


class TokenLikelihood(NamedTuple):
    """Log probabilities at one position, before temperature, filters and masks; natural logarithms.

    Attributes:
        top: Pairs of token id and log probability, most likely first, equal ones by ascending id.
            Where equal ones compete for the last place, any of them may be reported.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Admitted:
    """A sequence that joined the batch.

    Attributes:
        cached_tokens: Length of the prefix that is expected from the cache. ``StepResult.restored``
            has the true length once the sequence is ready.
        block_tokens: Tokens in a cache block; 0 if the runner keeps no blocks.
    """

    uid: int
    cached_tokens: int = 0
    block_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """A sequence that failed without affecting the others; it is no longer in the batch.

    Attributes:
        is_shared: Whether several prompts were computed in the pass that failed, so that the cause
            may be another one. The engine inserts each again with ``Admission.is_alone``.
        is_restore: Whether cached tokens could not be restored. The engine inserts the sequence
            again with ``Admission.is_cold``, once.
    """

    uid: int
    error: Exception
    retryable: bool = False
    is_shared: bool = False
    is_restore: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one step of the batch.

    Attributes:
        tokens: ``(uid, token, finish)`` for each token of a decoding sequence, in order; a sequence
            has one or several, and one with a ``finish`` is no longer in the batch.
        prefilled: ``(uid, done, total)`` in tokens for each sequence whose prompt advanced; cached
            tokens count as done.
        faults: Sequences that failed alone.
        preempted: Sequences removed for lack of memory. The engine inserts them again when there
            is room; an earlier step returned their last token.
        likelihoods: By uid, for the sequences of ``tokens`` that request log probabilities: one for
            each of the sequence's tokens, in order.
        prompts: By uid, for sequences that are scored and whose prompt is complete: the log
            probabilities of each of ``Admission.tokens`` but the first, before which none stands.
        restored: Tokens of the sequences, by uid, that were restored and are ready for prefill.
        restored_at: When that was, in seconds on the monotonic clock; ``None`` for the end of the
            step.
    """

    tokens: Sequence[tuple[int, int, Finish | None]]
    prefilled: Sequence[tuple[int, int, int]] = ()
    faults: Sequence[Fault] = ()
    preempted: Sequence[int] = ()
    likelihoods: Mapping[int, Sequence[TokenLikelihood]] = field(default_factory=dict)
    prompts: Mapping[int, Sequence[TokenLikelihood]] = field(default_factory=dict)
    restored: Mapping[int, int] = field(default_factory=dict)
    restored_at: float | None = None


class CachedPrefix(NamedTuple):
    """The longest prefix of a prompt that is in the cache.

    Attributes:
        source: ``none``, ``ram``, or ``disk`` if at least one block is on disk only.
        resident: How many of the tokens are in memory.
        known: Tokens of which the full-attention layers are in the cache. More than ``tokens``
            where windows or states can go on only from an earlier checkpoint.
    """

    tokens: int = 0
    source: str = "none"
    resident: int = 0
    known: int = 0


class RenderedPrompt(NamedTuple):
    """A request as the token ids that the model reads.

    Attributes:
        opened: Text at the end of the prompt that is the beginning of the answer, such as the
            start of a forced tool call.
        echoed: The whole prompt as text, if the client wants the answer to begin with it.
        message_starts: Positions among the tokens at which messages begin, ascending, as far as
            they are known exactly. The first one is the end of tools and system prompt: prompts
            with the same tools and system prompt have the same tokens before it.
        last_message: Position at which the last message begins, or a few tokens before; 0 if it is
            not known.
    """

    tokens: tuple[int, ...]
    opened: str = ""
    echoed: str = ""
    message_starts: tuple[int, ...] = ()
    last_message: int = 0


class Render(Protocol):
    """Turns a request into a prompt."""

    def __call__(
        self, request: ChatRequest, encoding: PromptEncoding = PromptEncoding.MARKS_AS_TEXT, /
    ) -> RenderedPrompt:
        """Return the prompt; raises ``InvalidRequest``."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """The parts of a loaded model that any thread may use.

    Attributes:
        opens_thinking: Whether a prompt ends inside a reasoning section.
        channel_format: How it delimits the messages of an answer, if it writes several (as gpt-oss
            does); ``think_tags`` do not apply then.
        dropped: Markers around its text that are removed, for models with ``think_tags``.
        sampling: Default sampling parameters; the seed is ignored.
        constraint: Makes the constraint of the answer to a prompt, ``None`` if every token is
            allowed; raises ``InvalidRequest`` if a strict request cannot be satisfied.
        constrains: Whether it has grammars to make one.
        token_bytes: The bytes that a token adds to the text; empty for an unknown id.
        grammar_bytes: Returns the memory of the compiled grammars that are kept.
        vocabulary: Number of its token ids, where its files state it.
        images: From a request and the tokens of its prompt to the images among them.
    """

    card: ModelCard
    think_tags: ThinkTags | None
    render: Render
    opens_thinking: Callable[[Sequence[int]], bool]
    detokenizer: Callable[[], Detokenizer]
    sampling: Sampling = Sampling()
    tool_format: ToolFormat | None = None
    channel_format: ChannelFormat | None = None
    dropped: tuple[str, ...] = ()
    cached_prefix: Callable[[Sequence[int]], CachedPrefix] = lambda _: CachedPrefix()
    constraint: Callable[[PreparedPrompt], Constraint | None] = lambda _: None
    constrains: bool = False
    token_bytes: Callable[[int], bytes] = lambda _: b""
    grammar_bytes: Callable[[], int] = lambda: 0
    vocabulary: int | None = None
    images: Callable[[ChatRequest, Sequence[int]], tuple[PromptImage, ...]] = lambda *_: ()

    def parser(self, prompt: PreparedPrompt, stop: tuple[str, ...] = ()) -> AnswerParser:
        """Return the parser of the answer to ``prompt``, before its first token."""
        tags = None if prompt.is_raw else self.think_tags
        calls = None
        if self.tool_format is not None and prompt.tools:
            calls = CallRules(format=self.tool_format, tools=prompt.tools)
        if self.channel_format is not None and not prompt.is_raw:
            return ChannelParser(self.channel_format, stop, calls=calls)
        thinking = tags is not None and not prompt.opened and self.opens_thinking(prompt.tokens)
        dropped = () if prompt.is_raw else self.dropped
        return SectionParser(tags, stop, thinking=thinking, calls=calls, dropped=dropped)


class ModelRunner(Protocol):
    """A batch of sequences on a loaded model. Not thread-safe."""

    def load(self) -> LoadedModel:
        """Load weights and tokenizer. Called once, before any other method.

        Raises:
            ModelLoadError: The model cannot be loaded.
        """
        ...

    def must_wait(self, admission: Admission) -> WaitingFor | None:
        """Return ``PREFIX`` or ``DISK`` if blocks that the sequence can reuse will be ready soon.

        A running sequence computes them, or they are being read from disk (also while no sequence
        runs). The engine retries soon. The result becomes ``None`` within a bounded time.
        """
        ...

    def insert(self, admission: Admission) -> Admitted | None:
        """Add a sequence to the batch for the next step; return ``None`` if it does not fit now.

        A sequence fits at the latest when the batch is empty and everything is on disk. ``None``
        evicts nothing. An exception concerns this sequence alone and leaves the batch unchanged.
        """
        ...

    def step(self) -> StepResult:
        """Decode a token or more of each sequence; compute at most one chunk of a prompt before.

        An exception concerns the whole batch, and ``reset`` must follow. Where an exception or a
        fault is an error of the device (``is_device_error``), nothing more may be called.
        """
        ...

    def set_gap(self, gap_max_s: float) -> None:
        """Set the longest pause of a stream while a prompt is computed, in seconds; 0 for any."""
        ...

    def background(self) -> bool:
        """Do deferred work for a moment while no sequence runs; return whether some is left."""
        ...

    def remove(self, uid: int) -> None:
        """Remove a sequence from the batch, if it is there.

        The cache keeps its context, so that a sequence that is inserted again reads little of it.
        """
        ...

    def reset(self) -> None:
        """Drop all sequences and start with an empty batch."""
        ...

    def close(self) -> None:
        """Free the memory of the model."""
        ...


class SideWork:
    """Work that the engine thread does between the steps of the batch; this one has none."""

    def run_slice(self, seconds: float) -> bool:
        """Compute for about ``seconds``, if there is work; return whether some is left.

        Raises:
            Exception: The device failed; what fails otherwise ends its request alone.
        """
        del seconds
        return False

    def abandon(self, failure: Failed) -> None:
        """End all requests, with ``failure`` where they have begun.

        Nothing is computed or freed, because the device may have failed or a step may be stuck. Any
        thread may call it, also during a slice.
        """

    def close(self) -> None:
        """End all requests; the next worker computes them."""
