"""How many likelihoods may be asked for, and the shapes in which they are told."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.schemas.base import whole
from domain.chat.logprobs import TOP_MAX
from domain.errors import InvalidRequest

#: What OpenAI's completions of texts allow.
TEXT_TOP_MAX: Final = 5

# The validator stands last, so that the limits reach the number's own schema.
TopLogprobs = Annotated[int, Field(ge=0, le=TOP_MAX), BeforeValidator(whole)]
TextTop = Annotated[int, Field(ge=0, le=TEXT_TOP_MAX), BeforeValidator(whole)]


class TokenChance(TypedDict):
    """A token and the natural logarithm of its likelihood."""

    token: str
    logprob: float
    bytes: list[int]


class ResponseLogprob(TokenChance):
    """A token of an answer, and the likeliest ones at its place."""

    top_logprobs: list[TokenChance]


class ChatLogprobs(TypedDict):
    """The tokens of a choice's content."""

    content: list[ResponseLogprob]
    refusal: None


class DeltaChance(TypedDict):
    """A token and the natural logarithm of its likelihood."""

    token: str
    logprob: float


class DeltaLogprob(DeltaChance):
    """A token of a piece of text, and the likeliest ones at its place."""

    top_logprobs: list[DeltaChance]


class TextLogprobs(TypedDict):
    """The tokens of a completion of a text, member by member.

    ``top_logprobs`` has the token itself beside the likeliest; ``text_offset`` counts characters of
    the choice's own text.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


def logprobs_wanted(*, wanted: bool, top: int | None) -> int | None:
    """Return how many alternatives a chat completion is to tell, ``None`` if nothing.

    Raises:
        InvalidRequest: Alternatives are asked for, but not what they are alternatives to.
    """
    if top is not None and not wanted:
        msg = "logprobs must be true where top_logprobs is given"
        raise InvalidRequest(msg, field="top_logprobs")
    return (top or 0) if wanted else None
