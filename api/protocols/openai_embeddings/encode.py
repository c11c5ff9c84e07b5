"""Encodes vectors as the reply of ``POST /v1/embeddings``."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Literal, assert_never

from api.schemas.openai_completions import EmbeddingList, EmbeddingObject
from domain.chat.embedding import Vectors

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
