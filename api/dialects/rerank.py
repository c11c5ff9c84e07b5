"""``POST /rerank``: documents in the order of their similarity to a query."""

from __future__ import annotations

import math
import sys
from array import array
from typing import Annotated, Final, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.embeddings import EmbeddingBody, InputText, answer_vectors, parse_request
from api.dialects.generate import GENERATION_FAILURES
from api.http.bodies import Name, RequestBody, parse_body
from api.http.messages import Reply, Request
from api.http.operation import IDEMPOTENCY_KEY, Operation
from domain.chat.embedding import Vectors
from domain.job.state import Job

#: Documents of one request; the query is one more text.
DOCUMENTS_MAX: Final = 2047
#: Highest ``top_n``; more than the documents means all of them.
TOP_N_MAX: Final = 1 << 20


class RerankDocument(RequestBody):
    """A document as an object."""

    text: InputText


class RerankBody(RequestBody):
    """The body of ``POST /rerank``, in the form of Cohere, Jina, vLLM and llama.cpp."""

    model: Name
    query: InputText
    documents: Annotated[
        list[InputText | RerankDocument],
        Field(min_length=1, max_length=DOCUMENTS_MAX, fail_fast=True),
    ]
    top_n: Annotated[int, Field(ge=1, le=TOP_N_MAX)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: None = None
    rank_fields: None = None


class RankedText(TypedDict):
    """A document of the request."""

    text: str


class RankedDocument(TypedDict):
    """A document and its cosine similarity to the query, in [-1, 1]."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class RerankUsage(TypedDict):
    """Token counts of the query and all documents together."""

    prompt_tokens: int
    total_tokens: int


class Ranking(TypedDict):
    """The reply of ``POST /rerank``, the most similar document first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: RerankUsage


async def rerank(app: App, request: Request) -> Reply:
    """Return documents by the cosine of their vectors and that of the query."""
    return await answer_vectors(
        app,
        request,
        lambda: parse_request(_embedding_of(_read(request))),
        lambda view, vectors: _ranking(_read(request), view, vectors),
    )


def _read(request: Request) -> RerankBody:
    return parse_body(RerankBody, request.body)


def _texts(wire: RerankBody) -> list[str]:
    return [one if isinstance(one, str) else one.text for one in wire.documents]


def _embedding_of(wire: RerankBody) -> EmbeddingBody:
    return EmbeddingBody(model=wire.model, input=[wire.query, *_texts(wire)])


def _ranking(wire: RerankBody, view: Job, vectors: Vectors) -> Ranking:
    query, *others = map(_unit, vectors.each())
    scores = [sum(a * b for a, b in zip(query, other, strict=True)) for other in others]
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    results: list[RankedDocument] = [
        {"index": index, "relevance_score": max(-1.0, min(1.0, scores[index]))}
        for index in order[: wire.top_n]
    ]
    if wire.return_documents is not False:
        texts = _texts(wire)
        for one in results:
            one["document"] = {"text": texts[one["index"]]}
    tokens = view.usage.prompt_tokens
    usage: RerankUsage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": f"rerank-{view.id}", "model": wire.model, "results": results, "usage": usage}


def _unit(vector: bytes) -> list[float]:
    elements = array("f", vector)
    if sys.byteorder == "big":
        elements.byteswap()
    length = math.hypot(*elements) or 1.0
    return [one / length for one in elements]


RERANK_OPERATIONS: Final = tuple(
    Operation(
        f"POST {prefix}/rerank",
        rerank,
        id=f"rerank{suffix}",
        summary="Return documents by their similarity to a query",
        parameters=(IDEMPOTENCY_KEY,),
        body=RerankBody,
        example={"model": "notes", "query": "Who dances?", "documents": ["Bees dance."]},
        reply=Ranking,
        responses=GENERATION_FAILURES,
    )
    for prefix, suffix in (("/v1", ""), ("", "Unversioned"))
)
