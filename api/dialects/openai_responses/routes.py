"""``/v1/responses``: stored turns, each of which a later turn may continue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from api.app import App
from api.dialects.compaction import default_threshold, stream_behind, summarize, summary_of
from api.dialects.generate import (
    ATTACHED_HEADER,
    answer_open,
    count_parsed,
    count_prompt,
    generation,
    run_count,
)
from api.dialects.openai_responses import parse as responses
from api.dialects.openai_responses.bodies import (
    RESPONSE_ID_PATTERN,
    CompactBody,
    CompactedResponse,
    InputTokenCount,
    InputTokensBody,
    ResponseObject,
    ResponsesBody,
)
from api.dialects.openai_responses.compaction import (
    compacting,
    compaction_item,
    newest_question,
    shown_items,
)
from api.dialects.openai_responses.conversations import (
    ConversationTurn,
    items_of,
    plan_conversation_turn,
)
from api.dialects.openai_responses.encode import (
    PROTOCOL,
    ResponseEnvelope,
    ended_response,
    usage_of,
)
from api.dialects.openai_responses.parse import listed_items
from api.dialects.openai_responses.requested import Item, RequestedFields
from api.dialects.openai_responses.stored import (
    all_input_items,
    diagnosed,
    load_envelope,
    load_object,
    load_response,
    read_summary,
    resolve,
    turn_items,
)
from api.dialects.openai_responses.stream import ResponsesEncoder, error_event
from api.generation import AssembledAnswer, ParsedRequest, job_hex
from api.http.bodies import INT64_MAX
from api.http.messages import (
    JOB_HEADER,
    Access,
    Caller,
    Deleted,
    Listing,
    Reply,
    Request,
    StreamReply,
    json_reply,
)
from api.http.operation import (
    Operation,
    Order,
    PageOfRows,
    body_of,
    choice,
    flag,
    for_further_job,
    page_size,
    path,
    text,
    whole_number,
)
from api.streaming.answers import JobStream, abandoned_on_error, wait_for_end
from api.submit import accept_job, open_answer
from domain.errors import InvalidRequest
from domain.events.job import JobHidden
from domain.job.commit import commit

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
    turn, parsed = await app.call(_plan, app, request)
    due = partial(_is_due, app, turn, parsed)
    if turn.may_be_compacted and await run_count(app, request, due):
        if parsed.stream and not turn.requested.is_background:
            return StreamReply(
                pieces=stream_behind(
                    partial(_answer_behind, app, turn, request),
                    app.ping_s,
                    lambda error: error_event(error, 0, request.id),
                )
            )
        parsed = await _compacted(app, turn, request)
    return await _answer(app, parsed, request, is_background=turn.requested.is_background)


async def _answer(
    app: App, parsed: ParsedRequest, request: Request, *, is_background: bool = False
) -> Reply | StreamReply:
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


async def _answer_behind(app: App, turn: _Turn, request: Request) -> Reply | StreamReply:
    return await _answer(app, await _compacted(app, turn, request), request)


def _is_due(app: App, turn: _Turn, parsed: ParsedRequest) -> bool:
    """Whether the prompt of a turn has reached its threshold; blocks."""
    threshold = next(rule.compact_threshold for rule in turn.wire.context_management or ())
    if threshold is None:
        threshold = default_threshold(app)
    return count_parsed(app, parsed, turn.caller) >= threshold


async def _compacted(app: App, turn: _Turn, request: Request) -> ParsedRequest:
    """Compact the conversation of a turn by a job of its own, and return what then is generated.

    Raises:
        SemanticError: No summary was written.
    """
    summing = compacting(turn.requested, kept=newest_question(turn.conversation))
    envelope, answer = await _summarize(app, replace(turn, requested=summing, held=None), request)
    item = compaction_item(envelope.job_id, summary_of(answer))
    behind = replace(turn, requested=replace(turn.requested, compacted=item))
    return await app.call(_parsed, app, behind, request)


async def _summarize(
    app: App, turn: _Turn, request: Request
) -> tuple[ResponseEnvelope, AssembledAnswer]:
    """Have the model write the summary of a conversation; raises as ``_compacted`` does."""
    parsed = await app.call(_parsed, app, turn, request)
    if turn.requested.kept is not None:
        # The answer behind the compaction has the key of the request.
        request = for_further_job(request, "compaction")
    job_id, answer = await summarize(app, parsed, request, protocol=PROTOCOL)
    summary_of(answer, "max_output_tokens")
    return await app.call(load_envelope, app, job_id), answer


async def compact_response(app: App, request: Request) -> Reply:
    """Compact a conversation: a job writes its summary, and an item refers to it."""
    turn, _ = await app.call(_plan, app, request, CompactBody)
    if not turn.wire.input:
        turn = replace(turn, requested=replace(turn.requested, items=()))
    if not turn.conversation:
        raise InvalidRequest("there is no conversation to compact", field="input")
    turn = replace(turn, requested=compacting(turn.requested))
    envelope, answer = await _summarize(app, turn, request)
    questions = [item for item in turn.conversation if item.get("role") == "user"]
    compaction = compaction_item(envelope.job_id, summary_of(answer))
    body: CompactedResponse = {
        "id": envelope.id,
        "object": "response.compaction",
        "created_at": envelope.created_s,
        "output": [*listed_items(questions, job_hex(envelope.job_id)), compaction],
        "usage": usage_of(answer.finished().usage),
    }
    return json_reply(body, headers={JOB_HEADER: envelope.job_id})


async def count_input_tokens(app: App, request: Request) -> InputTokenCount:
    """Count the tokens of the prompt of a response.

    A response reports the same number.
    """
    tokens = await count_prompt(app, lambda: _plan(app, request, InputTokensBody)[1], request)
    return {"object": "response.input_tokens", "input_tokens": tokens}


async def get_response(app: App, request: Request) -> ResponseObject | StreamReply:
    """Return a response as it is now, or stream its events from any position."""
    is_stream, after = _IS_STREAM.read(request), _STARTING_AFTER.read(request)
    response_id = _RESPONSE_ID.read(request)
    if not is_stream:
        return await app.call(load_object, app, response_id)
    found = await app.call(load_response, app, response_id)
    return await _stream(found.envelope, -1 if after is None else after, request, app)


async def cancel_response(app: App, request: Request) -> ResponseObject:
    """Cancel a response; a repeated request changes nothing."""
    response_id = _RESPONSE_ID.read(request)
    found = await app.call(load_response, app, response_id)
    await app.call(app.cancellation.cancel, found.envelope.job_id, reason="api")
    await wait_for_end(app.feed, found.envelope.job_id, CANCEL_WAIT_S, request)
    return await app.call(load_object, app, response_id)


async def delete_response(app: App, request: Request) -> Deleted:
    """Delete a response; cancel it first if it has not ended."""
    response_id = _RESPONSE_ID.read(request)
    found = await app.call(load_response, app, response_id)
    if not found.job.status.is_terminal:
        await app.call(app.cancellation.cancel, found.envelope.job_id, reason="api")
    await app.call(commit, found.envelope.job_id, JobHidden(), log=app.log, ids=app.ids)
    return {"id": response_id, "object": "response", "deleted": True}


async def list_input_items(app: App, request: Request) -> Listing[dict[str, Any]]:
    """List the input items of a response.

    Those of the conversation before it are among them.
    """
    page = read_page(request)
    items = await app.call(all_input_items, app, _RESPONSE_ID.read(request), request.caller)
    return page.of(items)


def read_page(request: Request) -> PageOfRows:
    """Return the ``PAGE_PARAMETERS`` of a request."""
    return PageOfRows(_LIMIT.read(request), _ORDER.read(request), _AFTER.read(request))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A request of a turn, with the conversation before it.

    Attributes:
        before: The items of the earlier responses.
        held: The turn of the ``conversation`` that it names.
    """

    wire: ResponsesBody
    requested: RequestedFields
    before: Sequence[Item]
    held: ConversationTurn | None
    caller: Caller

    @property
    def conversation(self) -> Sequence[Item]:
        """The items of the conversation, the input included, oldest first."""
        return (*self.before, *self.requested.items)

    @property
    def may_be_compacted(self) -> bool:
        """Whether the request wants it, and something precedes the newest question."""
        older = len(self.conversation) - newest_question(self.conversation)
        return bool(self.wire.context_management) and older > 0


def _plan(
    app: App, request: Request, kind: type[ResponsesBody] = ResponsesBody
) -> tuple[_Turn, ParsedRequest]:
    """Return the turn of a request, and the generation that it asks for; blocks."""
    wire = responses.checked(body_of(kind, request))
    held: ConversationTurn | None = None
    before: list[Item] = []
    if (conversation := responses.conversation_of(wire)) is not None:
        held = plan_conversation_turn(app, conversation, request)
        before += items_of(held.held, [turn_items(app, job_id) for job_id in held.jobs])
    requested, before = resolve(app, wire, request.caller, before)
    turn = _Turn(wire=wire, requested=requested, before=before, held=held, caller=request.caller)
    return turn, _parsed(app, turn, request)


def _parsed(app: App, turn: _Turn, request: Request) -> ParsedRequest:
    """Return the generation that a turn asks for; blocks."""
    items = list(turn.conversation)
    if turn.requested.compacted is not None:
        items.append(turn.requested.compacted)
    shown = shown_items(items, partial(read_summary, app, turn.caller), len(turn.before))
    parsed = responses.parse_request(
        turn.wire, turn.requested, shown, request.headers, app.defaults
    )
    if turn.held is not None:
        parsed = replace(parsed, agent=turn.held.agent, claim=turn.held.claim)
    return parsed


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
    envelope = await app.call(diagnosed, app, envelope)
    job = await app.feed.open_job(envelope.job_id, request)
    encoder = ResponsesEncoder(envelope, request_id=request.id, after=after)
    pieces = JobStream(job, encoder, ping_s=app.ping_s)
    return StreamReply(pieces=pieces, headers={JOB_HEADER: envelope.job_id})


RESPONSE_OPERATIONS: Final = (
    generation(
        "POST /v1/responses",
        create_response,
        body=ResponsesBody,
        example={"model": "semantic-demo", "max_output_tokens": 32, "input": "Say hello."},
        reply=ResponseObject,
        is_streamed=True,
    ),
    Operation(
        "POST /v1/responses/input_tokens",
        count_input_tokens,
        body=InputTokensBody,
        example={"model": "semantic-demo", "input": "Say hello."},
        access=Access.READ,
        responses={429: "Too many prompts wait to be counted"},
    ),
    generation(
        "POST /v1/responses/compact",
        compact_response,
        id="compactResponse",
        summary="Shorten a conversation to the messages of the user and a summary",
        body=CompactBody,
        example={"model": "semantic-demo", "input": "Say hello."},
        reply=CompactedResponse,
    ),
    Operation(
        "GET /v1/responses/{response_id}",
        get_response,
        parameters=(_RESPONSE_ID, _IS_STREAM, _STARTING_AFTER),
        is_streamed=True,
    ),
    Operation(
        "DELETE /v1/responses/{response_id}",
        delete_response,
        parameters=(_RESPONSE_ID,),
    ),
    Operation(
        "POST /v1/responses/{response_id}/cancel",
        cancel_response,
        parameters=(_RESPONSE_ID,),
    ),
    Operation(
        "GET /v1/responses/{response_id}/input_items",
        list_input_items,
        parameters=(_RESPONSE_ID, *PAGE_PARAMETERS),
    ),
)
