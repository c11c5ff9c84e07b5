"""``POST /v1/chat/completions``, and the handler that ``POST /v1/completions`` shares."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from api.app import App
from api.dialects.generate import (
    ATTACHED_HEADER,
    GENERATION_FAILURES,
    USER_TURN,
    attempt_facts,
    first_item,
)
from api.dialects.openai_chat.bodies import ChatCompletion, ChatCompletionBody
from api.dialects.openai_chat.completions import (
    CompletionEncoder,
    CompletionEnvelope,
    CompletionKind,
    assemble,
)
from api.dialects.openai_chat.parse import CHAT
from api.generation import ParsedRequest
from api.http.messages import JOB_HEADER, Reply, Request, StreamReply, json_reply
from api.http.operation import IDEMPOTENCY_KEY, Operation
from api.streaming.answers import (
    OTHER_FAILED,
    JobStream,
    MergedItems,
    abandoned_on_error,
    collect_jobs,
)
from api.streaming.feed import OpenJob
from api.submit import open_answers
from domain.chat.items import Started


async def create_completion(
    app: App, request: Request, kind: CompletionKind
) -> Reply | StreamReply:
    """Answer a turn or a text, once or several times; the reply repeats the model name."""
    parse = partial(kind.parse, request.body, request.headers, defaults=app.defaults)
    parsed, jobs = await open_answers(app, parse, request, protocol=kind.protocol)
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
    headers |= (await attempt_facts(jobs[0].id, answers[0].started, app)).headers
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
        headers |= (await attempt_facts(jobs[0].id, started, app)).headers
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


CHAT_OPERATIONS: Final = (
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
)
