"""Say how long a prompt is, without running anything."""

from __future__ import annotations

from typing import Protocol

from domain.chat.ports import InferenceEngine
from domain.chat.request import ChatRequest
from domain.errors import PromptTooLong


class TokenCounter(Protocol):
    """Says how long a prompt is, where the model is somewhere else."""

    def count(self, request: ChatRequest) -> int:
        """Return the length of the prompt in tokens, exactly as a call would report it.

        Raises:
            InvalidRequest: The chat template refuses the messages.
            EngineFailure: The worker failed at it.
            ModelNotReady: No worker has answered in time.
            Overloaded: Too many wait for an answer.
            QueueUnavailable: The broker cannot be reached.
        """
        ...


def count_tokens(request: ChatRequest, engine: InferenceEngine) -> int:
    """Return the length of the prompt that ``request`` would be answered from, in tokens.

    It is made in the very same way as for an answer, so the two counts cannot differ.

    Raises:
        InvalidRequest: The chat template refuses the messages.
    """
    try:
        return len(engine.prepare(request).tokens)
    except PromptTooLong as error:
        return error.tokens
