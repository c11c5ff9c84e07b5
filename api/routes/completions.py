"""``POST /v1/chat/completions`` and ``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from api.http.messages import Reply, Request, StreamReply
from api.http.operation import Operation
from api.http.replies import json_reply
from api.http.request_headers import IDEMPOTENCY_KEY
from api.protocols.openai_chat.parse import CHAT
from api.protocols.openai_completions.parse import TEXT
from api.protocols.shared.completions import (
    CompletionEncoder,
    CompletionEnvelope,
    CompletionKind,
    assemble,
)
from api.protocols.shared.parsed_request import ParsedRequest
from api.routes.generate import (
    ATTACHED_HEADER,
    GENERATION_FAILURES,
    JOB_HEADER,
    USER_TURN,
    attempt_headers,
    first_item,
)
from api.schemas.openai_chat import ChatCompletionBody
from api.schemas.openai_completions import CompletionBody, TextCompletion
from api.schemas.replies import ChatCompletion
from api.services.route_services import Generation
from api.streaming.job_readers import CLIENT_GONE
from api.streaming.job_stream import JobStream, OpenJob
from api.streaming.merged_items import OTHER_FAILED, JobReadings, MergedItems, collect_jobs
from api.submission.submit_choices import open_choices
from domain.chat.items import Started
from domain.errors import SemanticError


async def create_completion(
    request: Request, generation: Generation, kind: CompletionKind
) -> Reply | StreamReply:
    """Answer a turn or a text, once or several times; the reply repeats the model name."""
    submission = generation.submission
    parse = partial(kind.parse, request.body, request.headers, defaults=generation.defaults)
    parsed, jobs = await open_choices(submission, parse, request, protocol=kind.protocol)
    envelope = CompletionEnvelope(
        kind=kind,
        jobs=tuple(job.id for job in jobs),
        model=parsed.chat.model,
        created=int(generation.clock.now().timestamp()),
        answers_each=parsed.answers_each,
    )
    headers = {JOB_HEADER: ", ".join(envelope.jobs)}
    attached = [job.attached for job in jobs if job.attached is not None]
    if attached:
        headers[ATTACHED_HEADER] = attached[0]
    if parsed.stream:
        return await _stream(jobs, envelope, parsed, request, generation, headers)
    answers = await collect_jobs(jobs)
    headers |= await attempt_headers(jobs[0].id, answers[0].started, generation)
    return json_reply(assemble(envelope, answers), headers=headers)


async def _stream(
    jobs: Sequence[OpenJob],
    envelope: CompletionEnvelope,
    parsed: ParsedRequest,
    request: Request,
    generation: Generation,
    headers: dict[str, str],
) -> StreamReply:
    started = await _first_item(jobs, generation)
    encoder = CompletionEncoder(envelope, include_usage=parsed.include_usage, request_id=request.id)
    pieces = JobStream(
        MergedItems(jobs),
        encoder,
        ping_s=generation.ping_s,
        reading=JobReadings([job.reading for job in jobs]),
    )
    headers |= await attempt_headers(jobs[0].id, started, generation)
    return StreamReply(pieces=pieces, headers=headers)


async def _first_item(jobs: Sequence[OpenJob], generation: Generation) -> Started | None:
    """Return the first item of the first job; raise the failure of any job that began with one."""
    try:
        started = await first_item(jobs[0], generation.opening_s)
        for job in jobs[1:]:
            # These jobs may wait until the first one has ended: only stored items count.
            await first_item(job, 0)
    except BaseException as error:
        reason = OTHER_FAILED if isinstance(error, SemanticError) else CLIENT_GONE
        for job in jobs:
            job.reading.abandon(reason)
            await job.items.close()
        raise
    return started


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
)
