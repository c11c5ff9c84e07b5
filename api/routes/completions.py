"""``POST /v1/chat/completions`` and ``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from api.http.messages import Reply, Request, StreamReply
from api.http.replies import json_reply
from api.protocols.shared.completions import (
    CompletionEncoder,
    CompletionEnvelope,
    CompletionKind,
    assemble,
)
from api.protocols.shared.parsed_request import ParsedRequest
from api.routes.generate import (
    ATTACHED_HEADER,
    JOB_HEADER,
    cache_headers,
    opening_of,
    parse_request,
)
from api.services import Services
from api.streaming.job_stream import JobStream
from api.streaming.merged_items import OTHER_FAILED, JobReadings, MergedItems, collect_jobs
from api.streaming.open_job import OpenJob
from api.submission.submit_choices import open_jobs
from domain.chat.items import Started
from domain.errors import SemanticError


async def create_completion(
    request: Request, *, services: Services, kind: CompletionKind
) -> Reply | StreamReply:
    """Answer a turn or a text, once or several times; the answer names the model as asked."""
    parse = partial(
        kind.parse,
        ids=services.ids,
        max_tokens_default=kind.max_tokens_default or services.max_tokens_default,
        efforts=services.efforts,
    )
    parsed = await parse_request(parse, request, services)
    jobs = await open_jobs(parsed, request, services, protocol=kind.protocol)
    envelope = CompletionEnvelope(
        kind=kind,
        jobs=tuple(job.id for job in jobs),
        model=parsed.chat.model,
        created=int(services.clock.now().timestamp()),
        answers_each=parsed.answers_each,
    )
    headers = {JOB_HEADER: ", ".join(envelope.jobs)}
    attached = [job.attached for job in jobs if job.attached is not None]
    if attached:
        headers[ATTACHED_HEADER] = attached[0]
    if parsed.stream:
        return await _stream(jobs, envelope, parsed, request, services, headers)
    answers = await collect_jobs(jobs)
    headers |= await cache_headers(jobs[0].id, answers[0].started, services)
    return json_reply(assemble(envelope, answers), headers=headers)


async def _stream(
    jobs: Sequence[OpenJob],
    envelope: CompletionEnvelope,
    parsed: ParsedRequest,
    request: Request,
    services: Services,
    headers: dict[str, str],
) -> StreamReply:
    started = await _opening(jobs, services)
    encoder = CompletionEncoder(envelope, include_usage=parsed.include_usage, request_id=request.id)
    pieces = JobStream(
        MergedItems(jobs),
        encoder,
        ping_s=services.ping_s,
        reading=JobReadings([job.reading for job in jobs]),
    )
    headers |= await cache_headers(jobs[0].id, started, services)
    return StreamReply(pieces=pieces, headers=headers)


async def _opening(jobs: Sequence[OpenJob], services: Services) -> Started | None:
    """Return what is known of the first prompt, or raise what a job failed with before it spoke."""
    try:
        started = await opening_of(jobs[0], services.opening_s)
        for job in jobs[1:]:
            # They may wait for the first one's place: only what is there already is looked at.
            await opening_of(job, 0)
    except BaseException as error:
        reason = OTHER_FAILED if isinstance(error, SemanticError) else "client_gone"
        for job in jobs:
            job.reading.abandon(reason)
            await job.feed.close()
        raise
    return started
