"""Choices of text completions: as chunks or as a whole."""

from __future__ import annotations

from api.protocols.openai_completions.logprobs import TextLogprobsRenderer
from api.protocols.shared.answer import AssembledAnswer
from api.protocols.shared.completions import Choice, finish_reason
from api.schemas.logprobs import TextLogprobs
from domain.chat.items import Body, Finished, Text


class TextChoiceRenderer:
    """``ChoiceRenderer`` of text completions.

    Args:
        index: Index of the choice.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._logprobs = TextLogprobsRenderer()

    def open(self) -> list[Choice]:
        """Return nothing: the first text is the first choice."""
        return []

    def render(self, body: Body) -> list[Choice]:
        """See ``ChoiceRenderer.render``."""
        if not isinstance(body, Text):
            return []
        return [_choice(self._index, body.text, self._logprobs.render(body.logprobs, body.text))]

    def end(self, ending: Finished) -> Choice:
        """Return the choice with the finish reason."""
        return _choice(self._index, "", None, finish_reason(ending))


def text_choice(index: int, answer: AssembledAnswer) -> Choice:
    """Return the choice of a finished answer.

    Args:
        index: Index of the choice.
        answer: The answer, with a ``Finished`` ending.
    """
    text = answer.joined("text")
    logprobs = TextLogprobsRenderer().render(answer.logprobs, text)
    return _choice(index, text, logprobs, finish_reason(answer.finished()))


def _choice(
    index: int, text: str, logprobs: TextLogprobs | None, reason: str | None = None
) -> Choice:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
