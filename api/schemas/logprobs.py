"""Log probabilities of tokens: limits in requests, and types in replies."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.schemas.base import whole
from domain.chat.logprobs import TOP_MAX
from domain.errors import InvalidRequest

#: Limit of OpenAI's text completions.
TEXT_TOP_MAX: Final = 5

# The validator is last, so that the schema of the number has the limits.
TopLogprobs = Annotated[int, Field(ge=0, le=TOP_MAX), BeforeValidator(whole)]
TextTop = Annotated[int, Field(ge=0, le=TEXT_TOP_MAX), BeforeValidator(whole)]


class TokenChance(TypedDict):
    """A token and the natural logarithm of its probability."""

    token: str
    logprob: float
    bytes: list[int]


class ResponseLogprob(TokenChance):
    """A token of an answer, and the most probable ones at its place."""

    top_logprobs: list[TokenChance]


class ChatLogprobs(TypedDict):
    """The tokens of the content of a choice."""

    content: list[ResponseLogprob]
    refusal: None


class DeltaChance(TypedDict):
    """A token and the natural logarithm of its probability."""

    token: str
    logprob: float


class DeltaLogprob(DeltaChance):
    """A token of a text delta, and the most probable ones at its place."""

    top_logprobs: list[DeltaChance]


class TextLogprobs(TypedDict):
    """The tokens of a text completion, one list for each property.

    ``top_logprobs`` has the token itself and the most probable ones. ``text_offset`` counts
    characters from the start of the text of the choice.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def logprobs_wanted(*, wanted: bool, top: int | None) -> int | None:
    """Return the number of alternatives for each token of a chat completion.

    Args:
        wanted: Whether the request has ``logprobs: true``.
        top: ``top_logprobs`` of the request.

    Returns:
        ``None`` if the reply has no log probabilities.

    Raises:
        InvalidRequest: The request has ``top_logprobs`` without ``logprobs``.
    """
    if top is not None and not wanted:
        msg = "logprobs must be true where top_logprobs is given"
        raise InvalidRequest(msg, field="top_logprobs")
    return (top or 0) if wanted else None
