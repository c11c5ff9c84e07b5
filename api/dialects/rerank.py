"""``POST /rerank``: documents in the order of their relevance to a query."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Final, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.decisions import (
    QUESTIONS_MAX,
    YES_OR_NO,
    answer_each,
    asking,
    option_chances,
)
from api.dialects.embeddings import (
    EmbeddingBody,
    EmbeddingUsage,
    InputText,
    answer_vectors,
    floats_of,
    parse_request,
)
from api.dialects.generate import generation
from api.dialects.openai_chat.completions import total_usage
from api.generation import ParsedRequest, RequestDefaults
from api.http.bodies import Name, RequestBody, VendorBody, parse_body
from api.http.messages import JOB_HEADER, Reply, Request, json_reply
from domain.chat.embedding import Vectors
from domain.chat.request import Message
from domain.errors import InvalidRequest
from domain.job.state import Job
from domain.model.registry import ModelKind
from domain.values import Usage

RERANK_PROTOCOL: Final = "rerank"
#: The system prompt and the task that Qwen3-Reranker is trained on; its scores depend on them.
_RERANK_SYSTEM: Final = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".'
)
_RERANK_TASK: Final = "Given a web search query, retrieve relevant passages that answer the query"
#: Documents of one request; the query is one more text.
DOCUMENTS_MAX: Final = 2047
#: Highest ``top_n``; more than the documents means all of them.
TOP_N_MAX: Final = 1 << 20


class RerankDocument(RequestBody):
    """A document as an object."""

    text: InputText


class RerankBody(VendorBody):
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

    @property
    def texts(self) -> list[str]:
        """The texts of the documents."""
        return [one if isinstance(one, str) else one.text for one in self.documents]


class RankedText(TypedDict):
    """A document of the request."""

    text: str


class RankedDocument(TypedDict):
    """A document and its score: a cosine in [-1, 1], or of a chat model the share of yes."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class Ranking(TypedDict):
    """The reply of ``POST /rerank``, the most relevant document first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage


async def rerank(app: App, request: Request) -> Reply:
    """Return documents by their relevance to a query.

    An embedding model gives the cosine of the vectors; a chat model, trained as a reranker, reads
    query and document together and answers yes or no.
    """
    wire, judges = await app.call(_read_rerank, app, request.body)
    if judges:
        return await _rerank_by_chat(app, request, wire)

    def parse_texts() -> ParsedRequest:
        return parse_request(EmbeddingBody(model=wire.model, input=[wire.query, *wire.texts]))

    def reply(view: Job, vectors: Vectors) -> Ranking:
        query, *others = map(_unit, vectors.each())
        cosines = [sum(a * b for a, b in zip(query, other, strict=True)) for other in others]
        scores = [max(-1.0, min(1.0, one)) for one in cosines]
        return _ranking(wire, scores, f"rerank-{view.id}", view.usage)

    return await answer_vectors(app, request, parse_texts, reply)


def _read_rerank(app: App, body: bytes) -> tuple[RerankBody, bool]:
    """Return the body, and whether its model is a chat model; blocks."""
    wire = parse_body(RerankBody, body)
    entry = app.registry().get(wire.model)
    judges = entry is not None and entry.kind is ModelKind.CHAT
    if judges and len(wire.documents) > QUESTIONS_MAX:
        msg = f"a chat model ranks at most {QUESTIONS_MAX} documents of a request"
        raise InvalidRequest(msg, field="documents")
    return wire, judges


async def _rerank_by_chat(app: App, request: Request, wire: RerankBody) -> Reply:
    parse = partial(_judgements, wire, app.defaults)
    headers, answers = await answer_each(
        app, request, parse, len(wire.documents), protocol=RERANK_PROTOCOL
    )
    scores: list[float] = []
    for index, answer in enumerate(answers):
        chances = option_chances(answer, YES_OR_NO)
        if chances is None:
            msg = (
                f"model {wire.model} answers neither yes nor no, so it cannot rank document {index}"
            )
            raise InvalidRequest(msg, field="model")
        scores.append(chances[0])
    usage = total_usage([answer.finished().usage for answer in answers], 1)
    name = "rerank-" + headers[JOB_HEADER].partition(",")[0]
    return json_reply(_ranking(wire, scores, name, usage), headers=headers)


def _judgements(wire: RerankBody, defaults: RequestDefaults, which: slice) -> ParsedRequest:
    """Return the questions about documents, in the form that Qwen3-Reranker is trained on."""
    asked = f"<Instruct>: {_RERANK_TASK}\n<Query>: {wire.query}\n<Document>: "
    system = Message(role="system", content=_RERANK_SYSTEM)
    first, *more = (
        asking(wire.model, (system, Message(role="user", content=asked + text)), defaults)
        for text in wire.texts[which]
    )
    return ParsedRequest(chat=first, more=tuple(more), seeded=True, unknown=wire.unknown)


def _ranking(wire: RerankBody, scores: Sequence[float], name: str, usage: Usage) -> Ranking:
    order = sorted(range(len(scores)), key=lambda index: (-scores[index], index))
    results: list[RankedDocument] = [
        {"index": index, "relevance_score": scores[index]} for index in order[: wire.top_n]
    ]
    if wire.return_documents is not False:
        for one in results:
            one["document"] = {"text": wire.texts[one["index"]]}
    prompt = usage.prompt_tokens
    counts: EmbeddingUsage = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + usage.completion_tokens,
    }
    return {"id": name, "model": wire.model, "results": results, "usage": counts}


def _unit(vector: bytes) -> list[float]:
    elements = floats_of(vector)
    length = math.hypot(*elements) or 1.0
    return [one / length for one in elements]


RERANK_OPERATIONS: Final = tuple(
    generation(
        f"POST {prefix}/rerank",
        rerank,
        id=f"rerank{suffix}",
        body=RerankBody,
        example={"model": "notes", "query": "Who dances?", "documents": ["Bees dance."]},
        reply=Ranking,
    )
    for prefix, suffix in (("/v1", ""), ("", "Unversioned"))
)
