"""``POST /v1/embeddings``: texts become vectors, and these the reply."""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import Field, Tag
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.generate import (
    ATTACHED_HEADER,
    MODEL_HEADER,
    generation,
    plain_header,
)
from api.dialects.openai_completions import Ids, by_form
from api.generation import ParsedRequest
from api.http.bodies import Dimensions, Name, VendorBody, parse_body
from api.http.messages import JOB_HEADER, Reply, Request, json_reply
from api.http.operation import body_of
from api.streaming.answers import abandoned_on_error, collect_job
from api.submit import open_answer
from domain.chat.embedding import EMBEDDINGS_PROTOCOL, EmbeddingInputs, EmbeddingText, Vectors
from domain.chat.request import ChatRequest
from domain.errors import JobNotFound, PayloadMissing
from domain.job.state import Job
from domain.values import JobId, SamplingWish

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


class EmbeddingBody(VendorBody):
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
    return ParsedRequest(chat=chat, seeded=True, unknown=wire.unknown)


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
        body = body_of(EmbeddingBody, request)
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


EMBEDDING_OPERATIONS: Final = (
    generation(
        "POST /v1/embeddings",
        create_embedding,
        body=EmbeddingBody,
        example={"model": "notes", "input": ["Bees dance.", "Cells divide."]},
        reply=EmbeddingList,
    ),
)
