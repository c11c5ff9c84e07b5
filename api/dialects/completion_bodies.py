"""The bodies of ``POST /v1/completions`` and ``POST /v1/embeddings``, and their replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.dialects.openai_chat.bodies import CompletionParameters, TextLogprobs, TextTop
from api.dialects.replies import OpenAIUsage
from api.http.bodies import Answers, Dimensions, Name, RequestBody, TokenId

#: Prompts of one request.
PROMPTS_MAX: Final = 64
#: Token ids of one prompt, which a JSON body has room for.
IDS_MAX: Final = 1 << 18

# Validation of each ends at its first error, since a body may have millions of elements.
Texts = Annotated[list[str], Field(min_length=1, max_length=PROMPTS_MAX, fail_fast=True)]
Ids = Annotated[list[TokenId], Field(min_length=1, max_length=IDS_MAX, fail_fast=True)]
ManyIds = Annotated[list[Ids], Field(min_length=1, max_length=PROMPTS_MAX, fail_fast=True)]


def _form(prompt: Any) -> str | None:  # noqa: ANN401 - any JSON value
    """Return the form of a prompt, so that errors are reported for that form alone."""
    if isinstance(prompt, str):
        return "text"
    if not isinstance(prompt, list):
        return None
    if prompt and isinstance(prompt[0], list):
        return "many"
    return "texts" if not prompt or isinstance(prompt[0], str) else "ids"


def _by_form(error_type: str) -> Discriminator:
    return Discriminator(
        _form,
        custom_error_type=error_type,
        custom_error_message="must be a text, token ids, or a list of either",
    )


Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[ManyIds, Tag("many")],
    _by_form("prompt_form"),
]


class CompletionBody(CompletionParameters):
    """The body of ``POST /v1/completions``: texts to continue, without a chat template."""

    prompt: Prompt
    best_of: Answers | None = None
    logprobs: TextTop | None = None
    echo: bool | None = None
    suffix: str | None = None


class TextChoice(TypedDict):
    """One answer to one prompt."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: str | None


class TextCompletion(TypedDict):
    """The reply of ``POST /v1/completions``."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: OpenAIUsage


#: Texts of one request, as the vendor documents it.
TEXTS_MAX: Final = 2048

InputText = Annotated[str, Field(min_length=1)]
InputTexts = Annotated[list[InputText], Field(min_length=1, max_length=TEXTS_MAX, fail_fast=True)]
InputIds = Annotated[list[Ids], Field(min_length=1, max_length=TEXTS_MAX, fail_fast=True)]


EmbeddingInput = Annotated[
    Annotated[InputText, Tag("text")]
    | Annotated[InputTexts, Tag("texts")]
    | Annotated[Ids, Tag("ids")]
    | Annotated[InputIds, Tag("many")],
    _by_form("input_form"),
]


class EmbeddingBody(RequestBody):
    """The body of ``POST /v1/embeddings``: texts whose vectors are computed."""

    model: Name
    input: EmbeddingInput
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Dimensions | None = None
    user: str | None = None


class EmbeddingObject(TypedDict):
    """The vector of one text; in base64, its elements are little-endian floats of 32 bits."""

    object: Literal["embedding"]
    index: int
    embedding: Sequence[float] | str


class EmbeddingUsage(TypedDict):
    """Token counts of all texts together."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """The reply of ``POST /v1/embeddings``, in the order of the texts."""

    object: Literal["list"]
    model: str
    data: list[EmbeddingObject]
    usage: EmbeddingUsage
