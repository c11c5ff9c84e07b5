"""What the routes that answer a generation on the same connection have in common."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

from api.http.messages import Reply, Request, StreamReply
from api.http.replies import json_reply
from api.presenters.cache_diagnostics import CACHE_HEADER, cache_header, cache_story
from api.protocols.shared.answer import AssembledAnswer
from api.protocols.shared.parsed_request import ParsedRequest
from api.services import Services
from api.streaming.job_stream import Encoder, JobStream, collect_job
from api.streaming.open_job import OpenJob
from api.submission.submit import open_job
from domain.chat.items import Failed, Started, StreamItem
from domain.values import JobId

#: Names the job on every answer, so that it can be found in the log.
JOB_HEADER: Final = "x-semantic-job"
#: Says why an answer is that of an earlier job, if it is.
ATTACHED_HEADER: Final = "x-semantic-attached"
#: Bodies up to this size are read in the event loop; larger ones would hold it up for too long.
PARSE_INLINE_MAX_BYTES: Final = 64 * 1024


async def parse_request(
    parse: Callable[[bytes, Mapping[str, str]], ParsedRequest], request: Request, services: Services
) -> ParsedRequest:
    """Return the parsed body.

    Raises:
        InvalidRequest: From ``parse``.
    """
    if len(request.body) <= PARSE_INLINE_MAX_BYTES:
        return parse(request.body, request.headers)
    return await services.call(parse, request.body, request.headers)


async def generate(
    parsed: ParsedRequest,
    request: Request,
    services: Services,
    *,
    protocol: str,
    encoder: Callable[[JobId, Started | None], Encoder[StreamItem]],
    assemble: Callable[[JobId, AssembledAnswer], Mapping[str, Any]],
) -> Reply | StreamReply:
    """Run a request as a job and answer it here, as it was asked: in pieces or whole.

    Args:
        parsed: The request.
        request: Its connection.
        services: The ports.
        protocol: What the log calls the dialect.
        encoder: Makes the events of a stream; gets what is known of its prompt by then.
        assemble: Makes the whole answer.

    Raises:
        SemanticError: The job could not be accepted, or its whole answer failed.
    """
    job = await open_job(parsed, request, services, protocol=protocol)
    return await answer_open(
        job, services, stream=parsed.stream, encoder=encoder, assemble=assemble
    )


async def answer_open(
    job: OpenJob,
    services: Services,
    *,
    stream: bool,
    encoder: Callable[[JobId, Started | None], Encoder[StreamItem]],
    assemble: Callable[[JobId, AssembledAnswer], Mapping[str, Any]],
) -> Reply | StreamReply:
    """Answer with what an open job says; the arguments are those of ``generate``.

    Raises:
        SemanticError: The whole answer failed.
    """
    headers: dict[str, str] = {JOB_HEADER: job.id}
    if job.attached is not None:
        headers[ATTACHED_HEADER] = job.attached
    if stream:
        started = await opening_of(job, services.opening_s)
        speaker = encoder(job.id, started)
        headers |= await cache_headers(job.id, started, services)
        pieces = JobStream(job.feed, speaker, ping_s=services.ping_s, reading=job.reading)
        return StreamReply(pieces=pieces, headers=headers)
    answer = await collect_job(job)
    headers |= await cache_headers(job.id, answer.started, services)
    return json_reply(assemble(job.id, answer), headers=headers)


async def cache_headers(
    job_id: JobId, started: Started | None, services: Services
) -> dict[str, str]:
    """Return the header that tells what of the prompt was known, once that is known."""
    if started is None:
        return {}
    story = await services.call(cache_story, job_id, services)
    return {} if story is None else {CACHE_HEADER: cache_header(story)}


async def opening_of(job: OpenJob, within_s: float) -> Started | None:
    """Return what is known of the prompt, or raise what the job failed with before it spoke.

    A stream that has begun can tell of a failure only inside itself, where clients take it for a
    passing one: Claude Code makes its conversation shorter on a status of 400, not on an event.
    """
    try:
        first = await job.feed.peek(within_s)
    except asyncio.CancelledError:
        job.reading.abandon("client_gone")
        await job.feed.close()
        raise
    body = first.body if first is not None else None
    if isinstance(body, Failed):
        await collect_job(job)
    return body if isinstance(body, Started) else None
