"""Parses requests for vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from api.protocols.shared.parsed_request import ParsedRequest, RequestDefaults
from api.schemas.base import parse_body
from api.schemas.openai_completions import EmbeddingBody
from domain.chat.embedding import EmbeddingInputs, EmbeddingText
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
