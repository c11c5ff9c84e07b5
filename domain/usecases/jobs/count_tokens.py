"""Counts the tokens of a prompt without running it, also while its model is being loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from domain.chat.ports import InferenceEngine
from domain.chat.request import ChatRequest
from domain.errors import EngineLost, PromptTooLong


class TokenCounter(Protocol):
    """Counts the tokens of prompts, where the model is in another process."""

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
        ...


def count_tokens(request: ChatRequest, engine: InferenceEngine) -> int:
    """Return the length of the prompt of ``request`` in tokens.

    The prompt is prepared as for an answer, so the two counts are equal. A prompt that is several
    times too long is not counted to its end: the number is an estimate.

    Raises:
        InvalidRequest: The chat template refuses the messages.
    """
    try:
        return len(engine.prepare(request).tokens)
    except PromptTooLong as error:
        return error.tokens


class PromptCounter:
    """The counts of one worker. Belongs to the thread that counts.

    Args:
        engine: Counts once its model is loaded.
        load_length: Loads the tokenizer and returns a function from a request to the length of its
            prompt. Called for the first count before the model is loaded.
        on_count: Called before each count.
    """

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        load_length: Callable[[], Callable[[ChatRequest], int]],
        on_count: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._load_length = load_length
        self._on_count = on_count
        self._length: Callable[[ChatRequest], int] | None = None

    def count(self, request: ChatRequest) -> int:
        """Return the length of a prompt in tokens.

        Raises:
            InvalidRequest: The chat template refuses the messages.
            SemanticError: The tokenizer cannot be loaded, or the engine has failed.
        """
        self._on_count()
        try:
            tokens = count_tokens(request, self._engine)
        except EngineLost:
            if self._length is None:
                self._length = self._load_length()
            try:
                return self._length(request)
            except PromptTooLong as error:
                return error.tokens
        self._length = None
        return tokens
