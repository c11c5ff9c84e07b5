"""Log probabilities of tokens in the shapes of OpenAI's chat completions and Responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from api.dialects.openai_chat.bodies import ChatLogprobs, DeltaLogprob, ResponseLogprob, TokenChance
from domain.chat.logprobs import TokenLogprob


def chat_logprobs(values: Sequence[TokenLogprob]) -> ChatLogprobs | None:
    """Return the member ``logprobs`` of a choice; ``None`` without values."""
    return {"content": response_logprobs(values), "refusal": None} if values else None


def response_logprobs(values: Iterable[TokenLogprob]) -> list[ResponseLogprob]:
    """Return the entries of a chat choice or of a text of a response."""
    return [
        {
            **_chance(value.token, value.logprob),
            "top_logprobs": [_chance(token, logprob) for token, logprob in value.top],
        }
        for value in values
    ]


def delta_logprobs(values: Iterable[TokenLogprob]) -> list[DeltaLogprob]:
    """Return the entries of a response's text events, which have no ``bytes``."""
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


def token_text(token: bytes) -> str:
    r"""Return a token as text; a token of incomplete characters as escapes, ``\xe2\x82``."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in token)


def _chance(token: bytes, logprob: float) -> TokenChance:
    return {"token": token_text(token), "logprob": logprob, "bytes": list(token)}
