"""Counts the tokens of prompts, also while the weights of the model are being loaded."""

from __future__ import annotations

from collections.abc import Callable

from domain.chat.ports import InferenceEngine
from domain.chat.request import ChatRequest
from domain.errors import EngineLost
from domain.usecases.jobs.count_tokens import count_tokens


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
            return self._length(request)
        self._length = None
        return tokens
