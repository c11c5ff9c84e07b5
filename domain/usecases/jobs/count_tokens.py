"""Counts the tokens of a prompt without running it."""

from __future__ import annotations

from typing import Protocol

from domain.chat.ports import InferenceEngine
from domain.chat.request import ChatRequest
from domain.errors import PromptTooLong


class TokenCounter(Protocol):
    """Counts the tokens of prompts, where the model is in another process."""

    def count(self, request: ChatRequest) -> int:
        """Return the length of the prompt in tokens, exactly as a call would report it.

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

    The prompt is prepared as for an answer, so the two counts are equal.

    Raises:
        InvalidRequest: The chat template refuses the messages.
    """
    try:
        return len(engine.prepare(request).tokens)
    except PromptTooLong as error:
        return error.tokens
