"""``POST /v1/chat/completions``, ``POST /v1/completions`` and ``POST /v1/embeddings``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from api.app import App
from api.dialects import embeddings
from api.dialects.completion_bodies import (
    CompletionBody,
    EmbeddingBody,
    EmbeddingList,
    TextCompletion,
)
from api.dialects.embeddings import embedding_list
from api.dialects.generate import (
    ATTACHED_HEADER,
    GENERATION_FAILURES,
    MODEL_HEADER,
    USER_TURN,
    attempt_headers,
    first_item,
    plain_header,
)
from api.dialects.openai_chat.bodies import ChatCompletionBody
from api.dialects.openai_chat.completions import (
    CompletionEncoder,
    CompletionEnvelope,
    CompletionKind,
    assemble,
)
from api.dialects.openai_chat.parse import CHAT
from api.dialects.openai_completions import TEXT
from api.dialects.replies import ChatCompletion
from api.http.messages import JOB_HEADER, Reply, Request, StreamReply
from api.http.operation import Operation
from api.http.request_headers import IDEMPOTENCY_KEY
from api.http.sse import json_reply
from api.parsed_request import ParsedRequest
from api.streaming.answers import (
    OTHER_FAILED,
    JobStream,
    MergedItems,
    abandoned_on_error,
    collect_job,
    collect_jobs,
)
from api.streaming.feed import OpenJob
from api.submit import open_choices
from domain.chat.embedding import EMBEDDINGS_PROTOCOL, Vectors
from domain.chat.items import Started
from domain.errors import JobNotFound, PayloadMissing
from domain.job.state import Job
from domain.values import JobId


async def create_completion(
    app: App, request: Request, kind: CompletionKind
) -> Reply | StreamReply:
    """Answer a turn or a text, once or several times; the reply repeats the model name."""
    submission = app.submission
    parse = partial(kind.parse, request.body, request.headers, defaults=app.defaults)
    parsed, jobs = await open_choices(submission, parse, request, protocol=kind.protocol)
    envelope = CompletionEnvelope(
        kind=kind,
        jobs=tuple(job.id for job in jobs),
        model=parsed.chat.model,
        created=int(app.clock.now().timestamp()),
        answers_each=parsed.answers_each,
    )
    headers = {JOB_HEADER: ", ".join(envelope.jobs)}
    attached = [job.attached for job in jobs if job.attached is not None]
    if attached:
        headers[ATTACHED_HEADER] = attached[0]
    if parsed.stream:
        return await _stream(jobs, envelope, parsed, request, app, headers)
    answers = await collect_jobs(jobs)
    headers |= await attempt_headers(jobs[0].id, answers[0].started, app)
    return json_reply(assemble(envelope, answers), headers=headers)


async def _stream(
    jobs: Sequence[OpenJob],
    envelope: CompletionEnvelope,
    parsed: ParsedRequest,
    request: Request,
    app: App,
    headers: dict[str, str],
) -> StreamReply:
    async with abandoned_on_error(jobs, refusal=OTHER_FAILED):
        started = await _first_item(jobs, app)
        headers |= await attempt_headers(jobs[0].id, started, app)
    encoder = CompletionEncoder(envelope, include_usage=parsed.include_usage, request_id=request.id)
    pieces = JobStream(MergedItems(jobs), encoder, ping_s=app.ping_s)
    return StreamReply(pieces=pieces, headers=headers)


async def _first_item(jobs: Sequence[OpenJob], app: App) -> Started | None:
    """Return the first item of the first job; raise the failure of any job that began with one."""
    started = await first_item(jobs[0], app.opening_s)
    for job in jobs[1:]:
        # These jobs may wait until the first one has ended: only stored items count.
        await first_item(job, 0)
    return started


async def create_embeddings(app: App, request: Request) -> Reply:
    """Return the vectors of texts, in their order; the reply repeats the model name."""
    parse = partial(embeddings.parse, request.body, request.headers, app.defaults)
    _, job = await app.submission.open(parse, request, protocol=EMBEDDINGS_PROTOCOL)
    headers: dict[str, str] = {JOB_HEADER: job.id}
    if job.attached is not None:
        headers[ATTACHED_HEADER] = job.attached
    await collect_job(job, is_reply=False)
    async with abandoned_on_error([job]):
        view, vectors = await app.call(_vectors_of, job.id, app)
        if view.answered_by is not None:
            headers[MODEL_HEADER] = plain_header(view.answered_by)
        reply = await app.call(_vector_reply, request, view, vectors, headers)
    job.delivered()
    return reply


def _vectors_of(job_id: JobId, app: App) -> tuple[Job, Vectors]:
    """Return the job and its vectors; blocks.

    Raises:
        PayloadMissing: The vectors were erased.
    """
    view = app.records.views.get(job_id)
    if view is None:
        raise JobNotFound(job_id)
    stored = app.records.read_stored(view)
    if stored is None or stored.vectors is None:
        raise PayloadMissing(view.output or view.id)
    return view, stored.vectors


def _vector_reply(request: Request, view: Job, vectors: Vectors, headers: dict[str, str]) -> Reply:
    body = embeddings.read_body(request.body)
    reply = embedding_list(
        vectors,
        model=body.model,
        prompt_tokens=view.usage.prompt_tokens,
        encoding=body.encoding_format,
    )
    return json_reply(reply, headers=headers)


COMPLETION_OPERATIONS: Final = (
    Operation(
        "POST /v1/chat/completions",
        partial(create_completion, kind=CHAT),
        id="createChatCompletion",
        summary="Generate an answer in OpenAI's Chat Completions format",
        parameters=(IDEMPOTENCY_KEY,),
        body=ChatCompletionBody,
        example={"model": "semantic-demo", "max_tokens": 32, "messages": [USER_TURN]},
        reply=ChatCompletion,
        is_streamed=True,
        responses=GENERATION_FAILURES,
    ),
    Operation(
        "POST /v1/completions",
        partial(create_completion, kind=TEXT),
        id="createCompletion",
        summary="Continue a text in OpenAI's Completions format",
        parameters=(IDEMPOTENCY_KEY,),
        body=CompletionBody,
        example={"model": "semantic-demo", "max_tokens": 32, "prompt": "Say hello."},
        reply=TextCompletion,
        is_streamed=True,
        responses=GENERATION_FAILURES,
    ),
    Operation(
        "POST /v1/embeddings",
        create_embeddings,
        id="createEmbedding",
        summary="Return the vectors of texts in OpenAI's format",
        parameters=(IDEMPOTENCY_KEY,),
        body=EmbeddingBody,
        example={"model": "notes", "input": ["Bees dance.", "Cells divide."]},
        reply=EmbeddingList,
        responses=GENERATION_FAILURES,
    ),
)
