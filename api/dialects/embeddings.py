"""OpenAI embeddings: the body becomes a request, vectors become the reply."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Mapping
from typing import Final, Literal, assert_never

from api.dialects.completion_bodies import EmbeddingBody, EmbeddingList, EmbeddingObject
from api.http.bodies import parse_body
from api.parsed_request import ParsedRequest, RequestDefaults
from domain.chat.embedding import EmbeddingInputs, EmbeddingText, Vectors
from domain.chat.request import ChatRequest
from domain.values import SamplingWish

#: No vector is drawn at random: equal requests have equal answers.
_SAMPLING: Final = SamplingWish(temperature=0.0, seed=0)


def read_body(body: bytes) -> EmbeddingBody:
    """Return the body of ``POST /v1/embeddings``.

    Raises:
        InvalidRequest: The error names the first invalid field.
    """
    return parse_body(EmbeddingBody, body)


def parse(body: bytes, headers: Mapping[str, str], defaults: RequestDefaults) -> ParsedRequest:
    """Parse a body of ``POST /v1/embeddings``.

    Args:
        body: The body of the request.
        headers: Without effect: vectors belong to no agent.
        defaults: Without effect: the request names its model.

    Raises:
        InvalidRequest: The error names the first invalid field.
    """
    del headers, defaults
    return parse_request(read_body(body))


def parse_request(wire: EmbeddingBody) -> ParsedRequest:
    """Return the request of a body."""
    chat = ChatRequest(
        model=wire.model,
        messages=(),
        max_tokens=0,
        sampling=_SAMPLING,
        embedding=EmbeddingInputs(texts=_texts(wire), dimensions=wire.dimensions),
    )
    return ParsedRequest(chat=chat, seeded=True)


def _texts(wire: EmbeddingBody) -> tuple[EmbeddingText, ...]:
    given = wire.input
    if isinstance(given, str):
        return (given,)
    if isinstance(given[0], int):
        return (tuple(one for one in given if isinstance(one, int)),)
    return tuple(tuple(one) if isinstance(one, list) else str(one) for one in given)


EncodingFormat = Literal["float", "base64"]


def embedding_list(
    vectors: Vectors, *, model: str, prompt_tokens: int, encoding: EncodingFormat | None
) -> EmbeddingList:
    """Return the reply with the vectors of all texts.

    Args:
        vectors: In the order of the texts.
        model: Name of the model in the request.
        prompt_tokens: Tokens of all texts together.
        encoding: Form of the elements; ``None`` for numbers.
    """
    form: EncodingFormat = encoding or "float"
    data: list[EmbeddingObject] = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector, form)}
        for index, vector in enumerate(vectors.each())
    ]
    return {
        "object": "list",
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    }


def _encoded(vector: bytes, form: EncodingFormat) -> array[float] | str:
    match form:
        case "float":
            return _floats(vector)
        case "base64":
            return base64_of(vector)
        case _:
            assert_never(form)


def base64_of(vector: bytes) -> str:
    """Return the elements of a vector in base64, as little-endian floats of 32 bits."""
    return base64.b64encode(vector).decode()


def _floats(vector: bytes) -> array[float]:
    elements = array("f", vector)
    if sys.byteorder == "big":
        elements.byteswap()
    return elements
