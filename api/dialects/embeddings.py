"""``POST /v1/embeddings`` and ``POST /rerank``: vectors of texts, and the order of documents."""

from __future__ import annotations

import base64
import math
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field, Tag
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.decisions import (
    QUESTIONS_MAX,
    YES_OR_NO,
    answer_each,
    asking,
    option_chances,
)
from api.dialects.generate import (
    ATTACHED_HEADER,
    MODEL_HEADER,
    generation,
    plain_header,
)
from api.dialects.openai_chat.completions import total_usage
from api.dialects.openai_completions import Ids, by_form
from api.generation import ParsedRequest, RequestDefaults
from api.http.bodies import Dimensions, Name, RequestBody, parse_body
from api.http.messages import JOB_HEADER, Reply, Request, json_reply
from api.streaming.answers import abandoned_on_error, collect_job
from api.submit import open_answer
from domain.chat.embedding import EMBEDDINGS_PROTOCOL, EmbeddingInputs, EmbeddingText, Vectors
from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest, JobNotFound, PayloadMissing
from domain.job.state import Job
from domain.model.registry import ModelKind
from domain.values import JobId, SamplingWish, Usage

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
    by_form("input_form"),
]


EncodingFormat = Literal["float", "base64"]


class EmbeddingBody(RequestBody):
    """The body of ``POST /v1/embeddings``: texts whose vectors are computed."""

    model: Name
    input: EmbeddingInput
    encoding_format: EncodingFormat | None = None
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


#: No vector is drawn at random: equal requests have equal answers.
_SAMPLING: Final = SamplingWish(temperature=0.0, seed=0)


def parse(body: bytes) -> ParsedRequest:
    """Parse a body of ``POST /v1/embeddings``, which belongs to no agent."""
    return parse_request(parse_body(EmbeddingBody, body))


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


def embedding_list(
    vectors: Vectors, *, model: str, prompt_tokens: int, encoding: EncodingFormat | None
) -> EmbeddingList:
    """Return the reply with the vectors of all texts, in their order; numbers by default."""
    encode: Callable[[bytes], array[float] | str] = base64_of if encoding == "base64" else floats_of
    return {
        "object": "list",
        "model": model,
        "data": [
            {"object": "embedding", "index": index, "embedding": encode(vector)}
            for index, vector in enumerate(vectors.each())
        ],
        "usage": {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens},
    }


def base64_of(vector: bytes) -> str:
    """Return the elements of a vector in base64, as little-endian floats of 32 bits."""
    return base64.b64encode(vector).decode()


def floats_of(vector: bytes) -> array[float]:
    """Return the elements of a vector."""
    elements = array("f", vector)
    if sys.byteorder == "big":
        elements.byteswap()
    return elements


async def create_embedding(app: App, request: Request) -> Reply:
    """Return the vectors of texts in OpenAI's format.

    The reply repeats the model name.
    """

    def reply(view: Job, vectors: Vectors) -> EmbeddingList:
        body = parse_body(EmbeddingBody, request.body)
        tokens = view.usage.prompt_tokens
        encoding = body.encoding_format
        return embedding_list(vectors, model=body.model, prompt_tokens=tokens, encoding=encoding)

    return await answer_vectors(app, request, partial(parse, request.body), reply)


async def answer_vectors(
    app: App,
    request: Request,
    parse_texts: Callable[[], ParsedRequest],
    reply_of: Callable[[Job, Vectors], Mapping[str, Any]],
) -> Reply:
    """Answer a request for vectors; ``reply_of`` makes the body of the reply, and may block."""
    _, job = await open_answer(app, parse_texts, request, protocol=EMBEDDINGS_PROTOCOL)
    headers: dict[str, str] = {JOB_HEADER: job.id}
    if job.attached is not None:
        headers[ATTACHED_HEADER] = job.attached
    await collect_job(job, is_reply=False)
    async with abandoned_on_error([job]):
        view, vectors = await app.call(_vectors_of, job.id, app)
        if view.answered_by is not None:
            headers[MODEL_HEADER] = plain_header(view.answered_by)
        reply = await app.call(lambda: json_reply(reply_of(view, vectors), headers=headers))
    job.delivered()
    return reply


def _vectors_of(job_id: JobId, app: App) -> tuple[Job, Vectors]:
    """Return the job and its vectors; blocks.

    Raises:
        PayloadMissing: The vectors were erased.
    """
    view = app.views.get(job_id)
    if view is None:
        raise JobNotFound(job_id)
    stored = app.records.read_stored(view)
    if stored is None or stored.vectors is None:
        raise PayloadMissing(view.output or view.id)
    return view, stored.vectors


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
    return ParsedRequest(chat=first, more=tuple(more), seeded=True)


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


EMBEDDING_OPERATIONS: Final = (
    generation(
        "POST /v1/embeddings",
        create_embedding,
        body=EmbeddingBody,
        example={"model": "notes", "input": ["Bees dance.", "Cells divide."]},
        reply=EmbeddingList,
    ),
)
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
