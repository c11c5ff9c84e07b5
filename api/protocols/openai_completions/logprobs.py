"""Log probabilities of the tokens of a text completion."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence

from api.protocols.shared.logprobs import token_text
from api.schemas.logprobs import TextLogprobs
from domain.chat.logprobs import TokenLogprob


class TextLogprobsRenderer:
    """Tells the tokens of one completion of a text, piece by piece."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        #: Characters of the tokens told; ``None`` before the first.
        self._at: int | None = None

    def render(self, values: Sequence[TokenLogprob], text: str) -> TextLogprobs | None:
        """Return the member ``logprobs`` of a choice; ``None`` where nothing is known.

        Args:
            values: Of the tokens that begin in the text.
            text: What the choice says.
        """
        if not values:
            return None
        return {
            "tokens": [_text_token(value.token) for value in values],
            "token_logprobs": [value.logprob for value in values],
            "top_logprobs": [_by_token(value) for value in values],
            "text_offset": [self._place(value.token, text) for value in values],
        }

    def _place(self, token: bytes, text: str) -> int:
        if self._at is None:
            # Some vocabularies write a space before the first word, which is no part of the text.
            self._at = -1 if token.startswith(b" ") and not text.startswith(" ") else 0
        at = self._at
        self._at += len(self._decoder.decode(token))
        return max(0, at)


def _text_token(token: bytes) -> str:
    """Return a token as completions of texts name it."""
    text = token_text(token)
    return text if text.encode() == token else f"bytes:{text}"


def _by_token(value: TokenLogprob) -> dict[str, float]:
    """Return the likeliest tokens and the one that was said; of two alike, the likelier."""
    told: dict[str, float] = {}
    for token, logprob in (*value.top, (value.token, value.logprob)):
        told.setdefault(_text_token(token), logprob)
    return told
