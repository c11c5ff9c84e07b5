"""Log probabilities of the tokens of a text completion."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence

from api.protocols.shared.logprobs import token_text
from api.schemas.logprobs import TextLogprobs
from domain.chat.logprobs import TokenLogprob


class TextLogprobsRenderer:
    """Renders the log probabilities of one choice, chunk by chunk."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        #: Characters of the rendered tokens; ``None`` before the first one.
        self._offset: int | None = None

    def render(self, values: Sequence[TokenLogprob], text: str) -> TextLogprobs | None:
        """Return the member ``logprobs`` of a chunk; ``None`` without values.

        Args:
            values: The tokens that begin in the text.
            text: The text of the chunk.
        """
        if not values:
            return None
        return {
            "tokens": [_text_token(value.token) for value in values],
            "token_logprobs": [value.logprob for value in values],
            "top_logprobs": [_by_token(value) for value in values],
            "text_offset": [self._next_offset(value.token, text) for value in values],
        }

    def _next_offset(self, token: bytes, text: str) -> int:
        if self._offset is None:
            # Some vocabularies put a space before the first word that the text does not have.
            self._offset = -1 if token.startswith(b" ") and not text.startswith(" ") else 0
        offset = self._offset
        self._offset += len(self._decoder.decode(token))
        return max(0, offset)


def _text_token(token: bytes) -> str:
    """Return a token in the notation of text completions."""
    text = token_text(token)
    return text if text.encode() == token else f"bytes:{text}"


def _by_token(value: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens and the emitted one; of equal texts, the likelier."""
    by_token: dict[str, float] = {}
    for token, logprob in (*value.top, (value.token, value.logprob)):
        by_token.setdefault(_text_token(token), logprob)
    return by_token
