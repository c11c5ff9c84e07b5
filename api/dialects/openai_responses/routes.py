"""``/v1/responses``: stored turns, each of which a later turn may continue."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from api.app import App
from api.dialects.generate import (
    ATTACHED_HEADER,
    GENERATION_FAILURES,
    answer_open,
    count_prompt,
)
from api.dialects.openai_responses import parse as responses
from api.dialects.openai_responses.bodies import (
    RESPONSE_ID_PATTERN,
    InputTokenCount,
    InputTokensBody,
    ResponseDeleted,
    ResponseItems,
    ResponseObject,
    ResponsesBody,
)
from api.dialects.openai_responses.conversations import (
    ConversationTurn,
    items_of,
    plan_conversation_turn,
)
from api.dialects.openai_responses.encode import (
    PROTOCOL,
    ResponseEnvelope,
    ResponsesEncoder,
    ended_response,
    find_item,
    response_object,
    unfinished_status,
)
from api.dialects.openai_responses.parse import (
    Item,
    RequestedFields,
    decode_fields,
    input_items,
    listed_items,
    requested_fields,
)
from api.generation import AssembledAnswer, ParsedRequest, job_hex, unix_seconds
from api.http.bodies import INT64_MAX, parse_body
from api.http.messages import JOB_HEADER, Access, Caller, Reply, Request, StreamReply, json_reply
from api.http.operation import (
    IDEMPOTENCY_KEY,
    Operation,
    Order,
    PageOfRows,
    choice,
    edges,
    flag,
    page_size,
    path,
    text,
    whole_number,
)
from api.streaming.answers import JobStream, abandoned_on_error, wait_for_end
from api.submit import accept_job, open_answer
from domain.chat.items import Failed, Finished
from domain.chat.stored_answer import StoredAnswer
from domain.errors import (
    InvalidRequest,
    JobNotFound,
    PayloadMissing,
    PreviousResponseNotFound,
    ResponseNotFound,
)
from domain.events.job import JobHidden
from domain.job.commit import commit, load_job
from domain.job.state import Job
from domain.values import JobId, JobStatus, StopReason


def current_response(
    envelope: ResponseEnvelope, view: Job | None, stored: StoredAnswer | None
) -> ResponseObject:
    """Return a response as it is now."""
    if view is None or not view.status.is_terminal:
        status = JobStatus.QUEUED if view is None else view.status
        return response_object(envelope, unfinished_status(envelope, status))
    answer = AssembledAnswer() if stored is None else AssembledAnswer.from_stored(view, stored)
    answer.ending = _ending(view)
    return ended_response(envelope, answer)


def _ending(view: Job) -> Finished | Failed:
    if view.error is not None or view.stop_reason is None:
        message = view.error_message or "the job failed"
        return Failed(error=view.error or "failure", message=message, retryable=False)
    return Finished(
        stop_reason=StopReason(view.stop_reason),
        usage=view.usage,
        stop_sequence=view.stop_sequence,
    )


#: Responses of one conversation; each is read from the log at every turn.
CHAIN_MAX: Final = 1000

_RESPONSE_NAME: Final = re.compile(RESPONSE_ID_PATTERN)
_ITEM_ID: Final = re.compile(r"(?:msg|rs|fc|ctc|tsc)_([0-9a-f]{32})_\d{1,9}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """A response in the log."""

    envelope: ResponseEnvelope
    job: Job


def load_envelope(app: App, job_id: JobId) -> ResponseEnvelope:
    """Return the request of a job that was accepted on this connection.

    The client may have asked not to store the response.

    Raises:
        ResponseNotFound: The job does not exist, or is not of this dialect.
    """
    return _load_job(app, job_id).envelope


def load_response(app: App, response_id: str) -> StoredResponse:
    """Return a response that a client may look up.

    Raises:
        ResponseNotFound: It does not exist, was deleted, or was not to be stored.
    """
    if not _RESPONSE_NAME.match(response_id):
        raise ResponseNotFound(response_id)
    found = _load_job(app, JobId("job-" + response_id.removeprefix("resp_")))
    if found.job.hidden or not found.envelope.requested.is_stored:
        raise ResponseNotFound(response_id)
    return found


def _present(app: App, found: StoredResponse) -> ResponseObject:
    """Return a response as it is now."""
    view = app.views.get(found.envelope.job_id)
    stored = None if view is None else app.records.read_stored(view)
    return current_response(_diagnosed(app, found.envelope), view, stored)


def _diagnosed(app: App, envelope: ResponseEnvelope) -> ResponseEnvelope:
    """Return the envelope with the cache diagnosis, if the request asks for one."""
    if not envelope.requested.compared:
        return envelope
    return replace(envelope, diagnosis=app.records.diagnose(envelope.job_id))


def load_object(app: App, response_id: str) -> ResponseObject:
    """Return a response as it is now by its id; raises as ``load`` does."""
    return _present(app, load_response(app, response_id))


def _resolve(
    app: App, wire: ResponsesBody, caller: Caller, before: list[Item]
) -> tuple[RequestedFields, list[Item]]:
    """Return a request without references, and the items of the conversation before it.

    Args:
        before: The items of the ``conversation`` that it names.

    Raises:
        InvalidRequest: An item is not valid, or the target of a reference does not exist; or
            the conversation has too many responses, or one of them has not ended.
        PreviousResponseNotFound: A response of the conversation does not exist.
    """
    items = [resolve_item(app, item, index, caller) for index, item in enumerate(input_items(wire))]
    before = [*before, *_conversation(app, wire.previous_response_id, caller)]
    requested = requested_fields(wire, items, before)
    return replace(requested, compared=_compared(app, wire, caller)), before


def _compared(app: App, wire: ResponsesBody, caller: Caller) -> str | None:
    """Return the job of the response that the request wants its cache compared with."""
    options = wire.prompt_cache_options
    if options is None or options.comparison_response_id is None:
        return None
    try:
        return _load_visible(app, options.comparison_response_id, caller).job.id
    except ResponseNotFound:
        return ""


def all_input_items(app: App, response_id: str, caller: Caller) -> list[dict[str, Any]]:
    """Return the input items of a response, with those of the conversation before it."""
    found = load_response(app, response_id)
    requested = found.envelope.requested
    before = _conversation(app, requested.previous, caller)
    return listed_items((*before, *requested.items), job_hex(found.envelope.job_id))


def turn_items(app: App, job_id: JobId) -> list[Item]:
    """Return the items of a response and its answer, each with an id; raises as ``load`` does."""
    found = _load_job(app, job_id)
    own = listed_items(found.envelope.requested.items, job_hex(job_id))
    return [*own, *_output_of(app, found)]


def _conversation(app: App, last: str | None, caller: Caller) -> list[Item]:
    """Return the items of a response and of those that it continues, oldest first."""
    parts: list[Sequence[Item]] = []
    previous = last
    while previous is not None:
        if len(parts) >= CHAIN_MAX:
            msg = f"the conversation has more than {CHAIN_MAX} responses"
            raise InvalidRequest(msg, field="previous_response_id")
        try:
            found = _load_visible(app, previous, caller)
        except ResponseNotFound:
            raise PreviousResponseNotFound(previous) from None
        parts.append((*found.envelope.requested.items, *_output_of(app, found)))
        previous = found.envelope.requested.previous
    return [item for part in reversed(parts) for item in part]


def _output_of(app: App, found: StoredResponse) -> Sequence[Item]:
    if not found.job.status.is_terminal:
        msg = f"response {found.envelope.id} has not ended"
        raise InvalidRequest(msg, field="previous_response_id")
    return _present(app, found)["output"]


def resolve_item(app: App, item: Item, index: int, caller: Caller) -> dict[str, Any]:
    """Return an item, or the target of a reference."""
    if item["type"] != "item_reference":
        return dict(item)
    named = _ITEM_ID.fullmatch(item["id"])
    try:
        found = _load_visible(app, f"resp_{named[1]}", caller) if named else None
    except ResponseNotFound:
        found = None
    target = find_item(_output_of(app, found), item["id"]) if found is not None else None
    if target is None:
        msg = f"item {item['id']} does not exist"
        raise InvalidRequest(msg, field=f"input.{index}.id")
    return dict(target)


def _load_visible(app: App, response_id: str, caller: Caller) -> StoredResponse:
    """Return a response that the caller may refer to; raises as ``load`` does."""
    found = load_response(app, response_id)
    missing = ResponseNotFound(response_id)
    app.ownership.require(caller, found.envelope.job_id, missing)
    return found


def _load_job(app: App, job_id: JobId) -> StoredResponse:
    response_id = f"resp_{job_id.removeprefix('job-')}"
    try:
        loaded = load_job(job_id, log=app.log)
        submitted = loaded.job.submitted
        if submitted is None or submitted.protocol != PROTOCOL or submitted.wire is None:
            raise ResponseNotFound(response_id)
        requested = decode_fields(app.payloads.get(submitted.wire))
    except (JobNotFound, PayloadMissing):
        raise ResponseNotFound(response_id) from None
    job = loaded.job
    envelope = ResponseEnvelope(
        job_id=job_id,
        created_s=unix_seconds(job.created_at),
        requested=requested,
        sampling=None if job.started is None else job.started.sampling,
        completed_s=None if job.finished_at is None else unix_seconds(job.finished_at),
    )
    return StoredResponse(envelope=envelope, job=job)


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
PAGE_PARAMETERS: Final = (_LIMIT, _ORDER, _AFTER)


async def create_response(app: App, request: Request) -> Reply | StreamReply:
    """Generate an answer in OpenAI's Responses format."""
    parsed, is_background = await app.call(_parse, app, request)
    if is_background:
        return await _in_background(parsed, request, app)
    _, job = await open_answer(app, lambda: parsed, request, protocol=PROTOCOL)
    async with abandoned_on_error([job]):
        envelope = await app.call(load_envelope, app, job.id)
    return await answer_open(
        job,
        app,
        stream=parsed.stream,
        encoder=lambda _, __, diagnosis: ResponsesEncoder(
            replace(envelope, diagnosis=diagnosis), request_id=request.id
        ),
        assemble=lambda _, answer, diagnosis: ended_response(
            replace(envelope, diagnosis=diagnosis), answer
        ),
    )


async def count_input_tokens(app: App, request: Request) -> Reply:
    """Count the tokens of the prompt of a response.

    A response reports the same number.
    """
    tokens = await count_prompt(app, lambda: _parse(app, request, InputTokensBody)[0], request)
    body: InputTokenCount = {"object": "response.input_tokens", "input_tokens": tokens}
    return json_reply(body)


async def get_response(app: App, request: Request) -> Reply | StreamReply:
    """Return a response as it is now, or stream its events from any position."""
    is_stream, after = _IS_STREAM.read(request), _STARTING_AFTER.read(request)
    response_id = _RESPONSE_ID.read(request)
    if not is_stream:
        return json_reply(await app.call(load_object, app, response_id))
    found = await app.call(load_response, app, response_id)
    return await _stream(found.envelope, -1 if after is None else after, request, app)


async def cancel_response(app: App, request: Request) -> Reply:
    """Cancel a response; a repeated request changes nothing."""
    response_id = _RESPONSE_ID.read(request)
    found = await app.call(load_response, app, response_id)
    await app.call(app.cancellation.cancel, found.envelope.job_id, reason="api")
    await wait_for_end(app.feed, found.envelope.job_id, CANCEL_WAIT_S, request)
    return json_reply(await app.call(load_object, app, response_id))


async def delete_response(app: App, request: Request) -> Reply:
    """Delete a response; cancel it first if it has not ended."""
    response_id = _RESPONSE_ID.read(request)
    found = await app.call(load_response, app, response_id)
    if not found.job.status.is_terminal:
        await app.call(app.cancellation.cancel, found.envelope.job_id, reason="api")
    await app.call(commit, found.envelope.job_id, JobHidden(), log=app.log, ids=app.ids)
    body: ResponseDeleted = {"id": response_id, "object": "response", "deleted": True}
    return json_reply(body)


async def list_input_items(app: App, request: Request) -> Reply:
    """List the input items of a response.

    Those of the conversation before it are among them.
    """
    page = read_page(request)
    items = await app.call(all_input_items, app, _RESPONSE_ID.read(request), request.caller)
    return json_reply(page_of_items(items, page))


def read_page(request: Request) -> PageOfRows:
    """Return the ``PAGE_PARAMETERS`` of a request."""
    return PageOfRows(_LIMIT.read(request), _ORDER.read(request), _AFTER.read(request))


def page_of_items(items: list[dict[str, Any]], wanted: PageOfRows) -> ResponseItems:
    """Return the wanted page of a list of items, which are oldest first."""
    page, more = wanted.of(items)
    return {"object": "list", "data": page, "has_more": more, **edges(page)}


def _parse(
    app: App, request: Request, kind: type[ResponsesBody] = ResponsesBody
) -> tuple[ParsedRequest, bool]:
    wire = responses.checked(parse_body(kind, request.body))
    held: ConversationTurn | None = None
    before: list[Item] = []
    if (conversation := responses.conversation_of(wire)) is not None:
        held = plan_conversation_turn(app, conversation, request)
        before += items_of(held.held, [turn_items(app, job_id) for job_id in held.jobs])
    requested, before = _resolve(app, wire, request.caller, before)
    parsed = responses.parse_request(wire, requested, before, request.headers, app.defaults)
    if held is not None:
        parsed = replace(parsed, agent=held.agent, claim=held.claim)
    return parsed, requested.is_background


async def _in_background(parsed: ParsedRequest, request: Request, app: App) -> Reply | StreamReply:
    accepted = await app.call(accept_job, app, lambda: parsed, request, protocol=PROTOCOL)
    headers: dict[str, str] = {JOB_HEADER: accepted.job_id}
    if accepted.attached is not None:
        headers[ATTACHED_HEADER] = accepted.attached
    envelope = await app.call(load_envelope, app, accepted.job_id)
    if parsed.stream:
        return await _stream(envelope, -1, request, app)
    body: ResponseObject = await app.call(load_object, app, envelope.id)
    return json_reply(body, headers=headers)


async def _stream(
    envelope: ResponseEnvelope, after: int, request: Request, app: App
) -> StreamReply:
    """Stream the events of a response; a client that leaves ends the stream and not the job."""
    envelope = await app.call(_diagnosed, app, envelope)
    job = await app.feed.open_job(envelope.job_id, request)
    encoder = ResponsesEncoder(envelope, request_id=request.id, after=after)
    pieces = JobStream(job, encoder, ping_s=app.ping_s)
    return StreamReply(pieces=pieces, headers={JOB_HEADER: envelope.job_id})


RESPONSE_OPERATIONS: Final = (
    Operation(
        "POST /v1/responses",
        create_response,
        parameters=(IDEMPOTENCY_KEY,),
        body=ResponsesBody,
        example={"model": "semantic-demo", "max_output_tokens": 32, "input": "Say hello."},
        reply=ResponseObject,
        is_streamed=True,
        responses=GENERATION_FAILURES,
    ),
    Operation(
        "POST /v1/responses/input_tokens",
        count_input_tokens,
        body=InputTokensBody,
        example={"model": "semantic-demo", "input": "Say hello."},
        reply=InputTokenCount,
        access=Access.READ,
        responses={429: "Too many prompts wait to be counted"},
    ),
    Operation(
        "GET /v1/responses/{response_id}",
        get_response,
        parameters=(_RESPONSE_ID, _IS_STREAM, _STARTING_AFTER),
        reply=ResponseObject,
        is_streamed=True,
    ),
    Operation(
        "DELETE /v1/responses/{response_id}",
        delete_response,
        parameters=(_RESPONSE_ID,),
        reply=ResponseDeleted,
    ),
    Operation(
        "POST /v1/responses/{response_id}/cancel",
        cancel_response,
        parameters=(_RESPONSE_ID,),
        reply=ResponseObject,
    ),
    Operation(
        "GET /v1/responses/{response_id}/input_items",
        list_input_items,
        parameters=(_RESPONSE_ID, *PAGE_PARAMETERS),
        reply=ResponseItems,
    ),
)
