"""The body of ``POST /v1/completions`` and the shape of its answer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.schemas.base import (
    NAME_PATTERN,
    MaxTokens,
    MinP,
    Name,
    OnlyOne,
    RequestBody,
    Seed,
    StopText,
    StopTexts,
    TopK,
    TopP,
)
from api.schemas.openai_chat import StreamOptions
from api.schemas.replies import OpenAIUsage


class CompletionBody(RequestBody):
    """The request: one text, which the chat template makes a question of.

    ``n`` and ``best_of`` must be 1. ``echo`` and ``suffix`` are refused.
    """

    model: Name
    prompt: str | Annotated[list[str], Field(min_length=1, max_length=1)]
    max_tokens: MaxTokens | None = None
    stop: StopText | StopTexts | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    n: OnlyOne | None = None
    best_of: OnlyOne | None = None
    seed: Seed | None = None
    echo: bool | None = None
    suffix: str | None = None
    session_id: Annotated[str, Field(pattern=NAME_PATTERN)] | None = None


class TextChoice(TypedDict):
    """The only choice; in a stream, the reason stands in the last piece."""

    index: int
    text: str
    logprobs: None
    finish_reason: str | None


class TextCompletion(TypedDict):
    """The answer of ``POST /v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: OpenAIUsage
