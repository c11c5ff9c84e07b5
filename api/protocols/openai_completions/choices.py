"""Choices of OpenAI text completions, in pieces or whole."""

from __future__ import annotations

from api.protocols.openai_completions.logprobs import TextLogprobsRenderer
from api.protocols.shared.answer import AssembledAnswer
from api.protocols.shared.completions import Choice, finish_reason, finished
from api.schemas.logprobs import TextLogprobs
from domain.chat.items import Body, Finished, Text


class TextChoiceRenderer:
    """``Voice`` of a completion of a text.

    Args:
        index: Place of the job.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._logprobs = TextLogprobsRenderer()

    def open(self) -> list[Choice]:
        """Return nothing: the first choice is the first text."""
        return []

    def render(self, body: Body) -> list[Choice]:
        """Return what an item calls for."""
        if not isinstance(body, Text):
            return []
        return [_choice(self._index, body.text, self._logprobs.render(body.logprobs, body.text))]

    def end(self, ending: Finished) -> Choice:
        """Return the choice that says why the answer ended."""
        return _choice(self._index, "", None, finish_reason(ending))


def text_choice(index: int, answer: AssembledAnswer) -> Choice:
    """Return the choice of a whole answer that finished.

    Args:
        index: Place of its job.
        answer: With a ``Finished`` ending.
    """
    text = answer.joined("text")
    told = TextLogprobsRenderer().render(answer.logprobs, text)
    return _choice(index, text, told, finish_reason(finished(answer)))


def _choice(
    index: int, text: str, logprobs: TextLogprobs | None, reason: str | None = None
) -> Choice:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
