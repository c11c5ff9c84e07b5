"""Prepares the prompt of a job, and counts the tokens of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeAlias

from domain.chat.generation import Claim, PreparedPrompt
from domain.chat.ports import InferenceEngine
from domain.chat.request import ChatRequest
from domain.errors import EngineLost, PromptTooLong
from domain.events.job import AttemptStarted
from domain.log.ports import PayloadStore
from domain.values import Digest, Owner

#: Yields what a function reads, for the length of a ``with`` block.
HoldRequest: TypeAlias = Callable[[Callable[[], bytes]], AbstractContextManager[bytes]]


class Preparation:
    """A preparation that can be cancelled; it looks now and then whether it was."""

    def __init__(self) -> None:
        self._cancelled = False

    def cancel(self) -> None:
        """Request the end."""
        self._cancelled = True

    def claim(self, owner: Owner | None) -> Claim:
        """Return the claim of the prompt that is prepared for a key."""
        return Claim(owner=owner, is_cancelled=lambda: self._cancelled)


@contextmanager
def hold_at_once(read: Callable[[], bytes]) -> Iterator[bytes]:
    """Yield what the function reads, however much is held already."""
    yield read()


def prepare_prompt(
    digest: Digest,
    before: AttemptStarted | None,
    *,
    cache_owner: Owner | None,
    claim: Claim,
    payloads: PayloadStore,
    engine: InferenceEngine,
    hold: HoldRequest,
) -> tuple[ChatRequest, PreparedPrompt]:
    """Return the request and its prompt.

    Args:
        before: The attempt whose answer is continued; its prompt is made again.
        cache_owner: As in ``JobSubmitted``.
        hold: Reads the payload as soon as there is room for what is made of it.

    Raises:
        PayloadMissing: The request is gone.
        PayloadDamaged: The request is not as it was accepted.
        InvalidRequest: The model cannot read the request.
        GenerationCancelled: The job was cancelled meanwhile.
    """
    with hold(partial(payloads.get, digest)) as payload:
        request = ChatRequest.from_bytes(payload)
        if before is None:
            return request, engine.prepare(request, cache_owner=cache_owner, claim=claim)
        prompt = engine.prepare(request, before.encoding, cache_owner, claim)
    # The limit depends on free memory.
    return request, replace(prompt, thinking_limit=before.thinking_limit)


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """A prompt as the model reads it.

    Attributes:
        text: The prompt as text, if the request echoes it.
    """

    ids: tuple[int, ...]
    text: str = ""


class TokenCounter(Protocol):
    """Counts the tokens of prompts, where the model is in another process."""

    def read(self, request: ChatRequest) -> PromptTokens:
        """Return the tokens of the prompt.

        Raises:
            InvalidRequest: Also for a prompt that does not fit the context; else as ``count``.
        """

    def count(self, request: ChatRequest) -> int:
        """Return the length of the prompt in tokens, as a call would report it.

        The number is exact for a prompt that fits the context, and an estimate for one that is
        several times too long.

        Raises:
            InvalidRequest: The chat template refuses the messages.
            EngineFailure: The worker failed to count.
            ModelNotReady: No worker answered in time.
            Overloaded: Too many counts are waiting.
            QueueUnavailable: The broker cannot be reached.
        """


class PromptCounter:
    """The counts of one worker. Belongs to the thread that counts.

    Args:
        engine: Counts once its model is loaded.
        load_tokens: Loads the tokenizer and returns a function from a request to its prompt.
            Called for the first count before the model is loaded.
        on_count: Called before each count.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        load_tokens: Callable[[], Callable[[ChatRequest], PromptTokens]],
        on_count: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._load_tokens = load_tokens
        self._on_count = on_count
        self._tokens: Callable[[ChatRequest], PromptTokens] | None = None

    def count(self, request: ChatRequest) -> int:
        """Return the length of a prompt in tokens.

        The prompt is prepared as for an answer, so the two counts are equal. One that is several
        times too long is not counted to its end: the number is an estimate.

        Raises:
            InvalidRequest: The chat template refuses the messages.
            SemanticError: The tokenizer cannot be loaded, or the engine has failed.
        """
        try:
            return len(self.read(request).ids)
        except PromptTooLong as error:
            return error.tokens

    def read(self, request: ChatRequest) -> PromptTokens:
        """Return the tokens of a prompt; raises ``PromptTooLong`` and what ``count`` raises."""
        self._on_count()
        try:
            prompt = self._engine.prepare(request)
        except EngineLost:
            if self._tokens is None:
                self._tokens = self._load_tokens()
            return self._tokens(request)
        self._tokens = None
        return PromptTokens(prompt.tokens, prompt.echoed)
