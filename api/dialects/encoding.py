"""Parts of replies that dialects share: log probabilities, reasoning, cache misses."""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.generation import job_hex
from domain.audit.recent_ends import CacheDiagnosis
from domain.chat.divergence import Cause
from domain.chat.logprobs import TokenLogprob
from domain.values import JobId

WordT = TypeVar("WordT", bound=str)


def miss_of(found: CacheDiagnosis, compared: JobId, words: Mapping[Cause, WordT]) -> WordT | None:
    """Return a dialect's word for why a prompt missed the cache; the diagnosis has a divergence.

    Args:
        compared: The job that the client asks to compare with.
        words: The words of the dialect, which are for changes of the request.

    Returns:
        ``None`` for another cause, or where the prompt of another job was nearer.
    """
    if found.divergence is None or found.compared_with != compared:
        return None
    return words.get(found.divergence.cause)


class DeltaChance(TypedDict):
    """A token and the natural logarithm of its probability."""

    token: str
    logprob: float


class TokenChance(DeltaChance):
    """A token with its bytes."""

    bytes: list[int]


class ResponseLogprob(TokenChance):
    """A token of an answer, and the most probable ones at its place."""

    top_logprobs: list[TokenChance]


class ChatLogprobs(TypedDict):
    """The tokens of the content of a choice."""

    content: list[ResponseLogprob]
    refusal: None


class DeltaLogprob(DeltaChance):
    """A token of a text delta, and the most probable ones at its place."""

    top_logprobs: list[DeltaChance]


class TextLogprobs(TypedDict):
    """The tokens of a text completion, one list for each property.

    ``top_logprobs`` has the token itself and the most probable ones. The first token of an echoed
    prompt has ``None`` for both. ``text_offset`` counts
    characters from the start of the text of the choice.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


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


_VERSION: Final = "s1"
_DIGEST_CHARS: Final = 32
_PARTS_WITH_TEXT: Final = 4
#: Most bytes of reasoning in a signature; bounds the memory that a forged one can take.
TEXT_BYTES_MAX: Final = 1 << 22


def sign_reasoning(job_id: JobId, index: int, text: str, *, carried: bool) -> str:
    """Return the signature of a block of reasoning.

    Args:
        carried: Whether the signature carries the text.
    """
    raw = text.encode("utf-8", "replace")
    signature = f"{_VERSION}.{job_hex(job_id)}-{index}.{_digest(raw)}"
    if not carried:
        return signature
    return f"{signature}.{base64.urlsafe_b64encode(zlib.compress(raw)).decode().rstrip('=')}"


def signed_reasoning(signature: str | None) -> str:
    """Return the reasoning in a signature; "" for a foreign signature or one without text."""
    parts = (signature or "").split(".")
    if len(parts) != _PARTS_WITH_TEXT or parts[0] != _VERSION:
        return ""
    try:
        packed = base64.urlsafe_b64decode(parts[3] + "=" * (-len(parts[3]) % 4))
        raw = zlib.decompressobj().decompress(packed, TEXT_BYTES_MAX)
        text = raw.decode()
    except (binascii.Error, zlib.error, ValueError):
        return ""
    return text if parts[2] == _digest(raw) else ""


def _digest(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:_DIGEST_CHARS]
