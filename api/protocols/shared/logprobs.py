"""How likely tokens were, in the shapes of OpenAI's protocols."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Iterable, Sequence

from api.schemas.logprobs import (
    ChatLogprobs,
    DeltaLogprob,
    ResponseLogprob,
    TextLogprobs,
    TokenChance,
)
from domain.chat.logprobs import TokenLogprob


def chat_logprobs(values: Sequence[TokenLogprob]) -> ChatLogprobs | None:
    """Return the member ``logprobs`` of a choice; ``None`` where nothing is known."""
    return {"content": response_logprobs(values), "refusal": None} if values else None


def response_logprobs(values: Iterable[TokenLogprob]) -> list[ResponseLogprob]:
    """Return the entries of a chat choice, or of a text of a response."""
    return [
        {
            **_chance(value.token, value.logprob),
            "top_logprobs": [_chance(token, logprob) for token, logprob in value.top],
        }
        for value in values
    ]


def delta_logprobs(values: Iterable[TokenLogprob]) -> list[DeltaLogprob]:
    """Return the entries of a response's text events, which tell no bytes."""
    return [
        {
            "token": token_text(value.token),
            "logprob": value.logprob,
            "top_logprobs": [
                {"token": token_text(token), "logprob": logprob} for token, logprob in value.top
            ],
        }
        for value in values
    ]


class TextLogprobsRenderer:
    """Tells the tokens of one completion of a text, piece by piece."""

    def __init__(self) -> None:
        self._decoder = getincrementaldecoder("utf-8")("replace")
        #: Characters of the tokens told; ``None`` before the first.
        self._at: int | None = None

    def told(self, values: Sequence[TokenLogprob], text: str) -> TextLogprobs | None:
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


def token_text(token: bytes) -> str:
    r"""Return a token as text; bytes that are no whole characters as ``\xe2\x82``, all of them."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in token)


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


def _chance(token: bytes, logprob: float) -> TokenChance:
    return {"token": token_text(token), "logprob": logprob, "bytes": list(token)}
