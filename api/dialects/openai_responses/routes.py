"""``/v1/responses``: stored turns, each of which a later turn may continue."""

from __future__ import annotations

from typing import Final

from api.app import App
from api.dialects.generate import (
    ATTACHED_HEADER,
    GENERATION_FAILURES,
    answer_open,
)
from api.dialects.openai_responses import parse as responses
from api.dialects.openai_responses.bodies import (
    RESPONSE_ID_PATTERN,
    ResponseDeleted,
    ResponseItems,
    ResponseObject,
    ResponsesBody,
)
from api.dialects.openai_responses.encode import ResponsesEncoder
from api.dialects.openai_responses.response_object import (
    PROTOCOL,
    ResponseEnvelope,
    ended_response,
)
from api.http.bodies import INT64_MAX
from api.http.messages import JOB_HEADER, Reply, Request, StreamReply
from api.http.operation import Operation
from api.http.parameters import Order, choice, flag, page_size, path, text, whole_number
from api.http.request_headers import IDEMPOTENCY_KEY
from api.http.sse import json_reply
from api.parsed_request import ParsedRequest
from api.streaming.answers import JobStream, abandoned_on_error, wait_for_end
from domain.events.job import JobHidden
from domain.usecases.jobs.commit import commit

#: Longest wait for the end of a cancelled job, in seconds; a running job ends within a step.
CANCEL_WAIT_S: Final = 10.0

_RESPONSE_ID: Final = path("response_id", pattern=RESPONSE_ID_PATTERN, example="resp_" + "0" * 32)
_IS_STREAM: Final = flag("stream", "stream the events")
_STARTING_AFTER: Final = whole_number(
    "starting_after",
    "sequence number of the last event received",
    default=None,
    most=INT64_MAX - 1,
)
_LIMIT: Final = page_size(default=20, most=100, description="largest number of items of the page")
_ORDER: Final = choice("order", "newest first if desc", Order, default=Order.DESC)
_AFTER: Final = text("after", "only items behind this one, in the order of the list")


async def create_response(app: App, request: Request) -> Reply | StreamReply:
    """Answer a turn, or accept it as a background response."""
    parsed, is_background = await app.call(_parse, app, request)
    if is_background:
        return await _in_background(parsed, request, app)
    _, job = await app.submission.open(lambda: parsed, request, protocol=PROTOCOL)
    async with abandoned_on_error([job]):
        envelope = await app.call(app.response_reader.load_envelope, job.id)
    return await answer_open(
        job,
        app,
        stream=parsed.stream,
        encoder=lambda _, __: ResponsesEncoder(envelope, request_id=request.id),
        assemble=lambda _, answer: ended_response(envelope, answer),
    )


async def get_response(app: App, request: Request) -> Reply | StreamReply:
    """Return a response as it is now, or stream its events from any position."""
    is_stream, after = _IS_STREAM.read(request), _STARTING_AFTER.read(request)
    response_id = _RESPONSE_ID.read(request)
    if not is_stream:
        return json_reply(await app.call(app.response_reader.load_object, response_id))
    found = await app.call(app.response_reader.load, response_id)
    return await _stream(found.envelope, -1 if after is None else after, request, app)


async def cancel_response(app: App, request: Request) -> Reply:
    """Cancel a response; one that has ended stays as it is."""
    response_id = _RESPONSE_ID.read(request)
    found = await app.call(app.response_reader.load, response_id)
    await app.call(app.cancellation.cancel, found.envelope.job_id, reason="api")
    await wait_for_end(app.feed, found.envelope.job_id, CANCEL_WAIT_S, request)
    return json_reply(await app.call(app.response_reader.load_object, response_id))


async def delete_response(app: App, request: Request) -> Reply:
    """Delete a response; cancel it first if it has not ended."""
    response_id = _RESPONSE_ID.read(request)
    found = await app.call(app.response_reader.load, response_id)
    if not found.job.status.is_terminal:
        await app.call(app.cancellation.cancel, found.envelope.job_id, reason="api")
    ids = app.defaults.ids
    log = app.response_reader.records.log
    await app.call(commit, found.envelope.job_id, JobHidden(), log=log, ids=ids)
    body: ResponseDeleted = {"id": response_id, "object": "response", "deleted": True}
    return json_reply(body)


async def list_input_items(app: App, request: Request) -> Reply:
    """List the input items of a response, with those of the conversation before it."""
    limit, order, after = _LIMIT.read(request), _ORDER.read(request), _AFTER.read(request)
    items = await app.call(
        app.response_reader.input_items, _RESPONSE_ID.read(request), request.caller
    )
    if order is Order.DESC:
        items.reverse()
    if after is not None:
        # The page behind an item of another response is empty.
        names = [item["id"] for item in items]
        items = items[names.index(after) + 1 :] if after in names else []
    page = items[:limit]
    body: ResponseItems = {
        "object": "list",
        "data": page,
        "has_more": len(items) > limit,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
    }
    return json_reply(body)


def _parse(app: App, request: Request) -> tuple[ParsedRequest, bool]:
    wire = responses.read_body(request.body)
    requested, before = app.response_reader.resolve(wire, request.caller)
    parsed = responses.parse_request(wire, requested, before, request.headers, app.defaults)
    return parsed, requested.is_background


async def _in_background(parsed: ParsedRequest, request: Request, app: App) -> Reply | StreamReply:
    accept = app.submission.accept
    accepted = await app.call(accept, lambda: parsed, request, protocol=PROTOCOL)
    headers: dict[str, str] = {JOB_HEADER: accepted.job_id}
    if accepted.attached is not None:
        headers[ATTACHED_HEADER] = accepted.attached
    envelope = await app.call(app.response_reader.load_envelope, accepted.job_id)
    if parsed.stream:
        return await _stream(envelope, -1, request, app)
    body: ResponseObject = await app.call(app.response_reader.load_object, envelope.id)
    return json_reply(body, headers=headers)


async def _stream(
    envelope: ResponseEnvelope, after: int, request: Request, app: App
) -> StreamReply:
    """Stream the events of a response; a client that leaves ends the stream and not the job."""
    job = await app.feed.open_job(envelope.job_id, request)
    encoder = ResponsesEncoder(envelope, request_id=request.id, after=after)
    pieces = JobStream(job, encoder, ping_s=app.ping_s)
    return StreamReply(pieces=pieces, headers={JOB_HEADER: envelope.job_id})


RESPONSE_OPERATIONS: Final = (
    Operation(
        "POST /v1/responses",
        create_response,
        id="createResponse",
        summary="Generate an answer in OpenAI's Responses format",
        parameters=(IDEMPOTENCY_KEY,),
        body=ResponsesBody,
        example={"model": "semantic-demo", "max_output_tokens": 32, "input": "Say hello."},
        reply=ResponseObject,
        is_streamed=True,
        responses=GENERATION_FAILURES,
    ),
    Operation(
        "GET /v1/responses/{response_id}",
        get_response,
        id="getResponse",
        summary="Return a response as it is now, or stream its events from any position",
        parameters=(_RESPONSE_ID, _IS_STREAM, _STARTING_AFTER),
        reply=ResponseObject,
        is_streamed=True,
    ),
    Operation(
        "DELETE /v1/responses/{response_id}",
        delete_response,
        id="deleteResponse",
        summary="Delete a response; cancel it first if it has not ended",
        parameters=(_RESPONSE_ID,),
        reply=ResponseDeleted,
    ),
    Operation(
        "POST /v1/responses/{response_id}/cancel",
        cancel_response,
        id="cancelResponse",
        summary="Cancel a response; a repeated request changes nothing",
        parameters=(_RESPONSE_ID,),
        reply=ResponseObject,
    ),
    Operation(
        "GET /v1/responses/{response_id}/input_items",
        list_input_items,
        id="listInputItems",
        summary="List the input items of a response",
        parameters=(_RESPONSE_ID, _LIMIT, _ORDER, _AFTER),
        reply=ResponseItems,
    ),
)
