"""``/v1/messages/batches``: Anthropic's Message Batches."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.batches.lines import ANTHROPIC, MESSAGES_PATH, LineLabels, lines_of
from api.dialects.batches.objects import (
    BATCHES_FULL,
    BatchCounts,
    Blocks,
    batch_id_of,
    batch_progress,
    client_payload,
    find_batch,
    is_reached,
    later,
    new_batch_id,
    wire_id,
)
from api.dialects.generate import USER_TURN
from api.generation import start_after_of
from api.http.bodies import (
    BATCH,
    Items,
    RequestBody,
    StartAfter,
    WebhookBody,
    parse_body,
)
from api.http.messages import Reply, Request, StreamReply, json_reply
from api.http.operation import Operation, edges, page_size, path, text
from domain.batch.jsonl import pack
from domain.batch.state import Batch, BatchState
from domain.errors import (
    BatchNotEnded,
    BatchNotFound,
    InvalidRequest,
    NotFound,
)
from domain.events.batch import BatchSubmitted
from domain.values import rfc3339

# --- Anthropic -----------------------------------------------------------------------------


class BatchRequest(LineLabels):
    """One request; an error in its ``params`` becomes its result.

    ``tags``, ``metadata`` and ``urgency`` are additions: those of the job of the request.
    """

    custom_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any]


class MessageBatchBody(RequestBody):
    """The body of ``POST /v1/messages/batches``: requests to answer within a day."""

    requests: Annotated[Items[BatchRequest], Field(min_length=1)]
    start_after: StartAfter | None = None
    webhook: WebhookBody | None = None


class MessageBatch(TypedDict):
    """An Anthropic batch.

    In ``request_counts`` all requests are ``processing`` until the batch has ended. ``progress``
    is an addition: the counts as they are now; so is ``start_after``, which only a batch with a
    later start has.
    """

    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: BatchCounts
    progress: BatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: str | None
    results_url: str | None
    start_after: NotRequired[str]


class MessageBatchList(TypedDict):
    """A page, newest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(TypedDict):
    """The reply to the deletion of a batch."""

    id: str
    type: Literal["message_batch_deleted"]


MESSAGE_BATCH_PREFIX: Final = "msgbatch_"

_MESSAGE_BATCH_STATUS: Final = {
    BatchState.CANCELING: "canceling",
    BatchState.ENDED: "ended",
    BatchState.FAILED: "ended",
}


def message_batch_status(batch: Batch) -> str:
    """Return the status of a batch in Anthropic's words."""
    return _MESSAGE_BATCH_STATUS.get(batch.state, "in_progress")


def message_batch_object(
    batch: Batch, counts: BatchCounts, *, archived_at: str | None, origin: str
) -> MessageBatch:
    """Return a batch in Anthropic's format.

    Args:
        counts: Its requests by state as they are now.
        archived_at: When its results were archived, if they were.
        origin: Origin of the URL of the results.
    """
    name = wire_id(batch.id, MESSAGE_BATCH_PREFIX)
    has_results = batch.state.is_terminal and archived_at is None
    none_done: BatchCounts = {
        "processing": batch.facts.lines,
        "succeeded": 0,
        "errored": 0,
        "canceled": 0,
        "expired": 0,
    }
    shown: MessageBatch = {
        "id": name,
        "type": "message_batch",
        "processing_status": message_batch_status(batch),  # type: ignore[typeddict-item]  # one of three
        "request_counts": counts if batch.state.is_terminal else none_done,
        "progress": counts,
        "created_at": batch.created_at,
        "expires_at": batch.facts.expires_at,
        "ended_at": batch.ended_at,
        "cancel_initiated_at": batch.cancel_requested_at,
        "archived_at": archived_at,
        "results_url": f"{origin}{MESSAGES_PATH}/batches/{name}/results" if has_results else None,
    }
    if batch.facts.start_after is not None:
        shown["start_after"] = batch.facts.start_after
    return shown


JSONL: Final = "application/x-jsonl"

_ID: Final = f"^{MESSAGE_BATCH_PREFIX}[0-9a-f]{{32}}$"
_BATCH_ID: Final = path("batch_id", example=MESSAGE_BATCH_PREFIX + "0" * 32)
_LIMIT: Final = page_size(default=20, most=1000)
_AFTER_ID: Final = text("after_id", "only batches older than this one", pattern=_ID)
_BEFORE_ID: Final = text("before_id", "only batches newer than this one", pattern=_ID)


async def create_message_batch(app: App, request: Request) -> Reply:
    """Accept a batch; a request that is not valid gets its error as its result."""
    await app.call(app.controls.require_admission)
    batch = await app.call(_accept, app, request)
    app.wake_batches()
    return json_reply(await app.call(_object, batch, request, app))


async def list_message_batches(app: App, request: Request) -> Reply:
    """List batches, newest first."""
    return json_reply(await app.call(_list, app, request))


async def get_message_batch(app: App, request: Request) -> Reply:
    """Return one batch."""
    batch = await app.call(_find, app, request)
    return json_reply(await app.call(_object, batch, request, app))


async def cancel_message_batch(app: App, request: Request) -> Reply:
    """Cancel a batch; one that has ended stays as it is."""
    batch = await app.call(_find, app, request)
    batch = await app.call(app.batch_records.cancel, batch.id)
    app.wake_batches()
    return json_reply(await app.call(_object, batch, request, app))


async def delete_message_batch(app: App, request: Request) -> Reply:
    """Delete a batch that has ended."""
    batch = await app.call(_find, app, request)
    name = wire_id(batch.id, MESSAGE_BATCH_PREFIX)
    if not batch.state.is_terminal:
        raise BatchNotEnded(name, message_batch_status(batch))
    await app.call(app.batch_records.delete, batch.id)
    body: DeletedMessageBatch = {"id": name, "type": "message_batch_deleted"}
    return json_reply(body)


async def message_batch_results(app: App, request: Request) -> StreamReply:
    """Return the results, a line for each request in the order of the requests."""
    batch = await app.call(_find, app, request)
    name = wire_id(batch.id, MESSAGE_BATCH_PREFIX)
    if not batch.state.is_terminal:
        raise BatchNotEnded(name, message_batch_status(batch))
    if _archived_at(batch, app) is not None:
        msg = f"the results of batch {name} have expired"
        raise NotFound(msg)
    lines = (line for _, line in lines_of(app).results(batch))
    return StreamReply(pieces=Blocks(lines, app.call), content_type=JSONL)


def _accept(app: App, request: Request) -> Batch:
    body = parse_body(MessageBatchBody, request.body, BATCH)
    rules = app.batch_limits
    if len(body.requests) > rules.lines_max:
        msg = f"{len(body.requests)} requests are more than the {rules.lines_max} of one batch"
        raise InvalidRequest(msg, field="requests")
    app.batch_records.require_room(batches_max=rules.open_max, owner=request.caller.sharer)
    seen: set[str] = set()
    for index, one in enumerate(body.requests):
        if one.custom_id in seen:
            msg = f"{one.custom_id} is not unique in this batch"
            raise InvalidRequest(msg, field=f"requests.{index}.custom_id")
        seen.add(one.custom_id)
    packed = pack(b"\n".join(_line(one) for one in body.requests))
    client = client_payload(request)
    now = app.clock.now()
    start = start_after_of(body.start_after, now)
    submitted = BatchSubmitted(
        protocol=ANTHROPIC,
        endpoint=MESSAGES_PATH,
        content=packed.digest,
        lines=packed.lines,
        start_after=None if start is None else rfc3339(start),
        expires_at=later(start or now, rules.window_s),
        client_name=next(iter(client), None),
        webhook=app.webhook_policy.url_of(body.webhook),
        trace=str(request.trace),
        owner=request.caller.owner,
        cache_owner=app.ownership.cache_owner_of(request.caller),
    )
    return app.batch_records.accept(
        new_batch_id(app.ids),
        submitted,
        correlation_id=request.id,
        payloads={**packed.payloads, **client},
        is_checked=True,
    )


def _line(one: BatchRequest) -> bytes:
    labels = one.model_dump(include=set(LineLabels.model_fields), exclude_none=True)
    line = {"custom_id": one.custom_id, "params": one.params, **labels}
    return json.dumps(line, separators=(",", ":")).encode()


def _list(app: App, request: Request) -> MessageBatchList:
    limit = _LIMIT.read(request)
    after, before = _AFTER_ID.read(request), _BEFORE_ID.read(request)
    try:
        page = app.batch_records.page(
            (ANTHROPIC,),
            limit=limit,
            after=batch_id_of(after, MESSAGE_BATCH_PREFIX) if after is not None else None,
            before=batch_id_of(before, MESSAGE_BATCH_PREFIX) if before is not None else None,
            owner=request.caller.sees,
        )
    except BatchNotFound as error:
        raise InvalidRequest(
            error.message, field="after_id" if before is None else "before_id"
        ) from error
    data = [_object(batch, request, app) for batch in page.rows]
    return {
        "data": data,
        "has_more": page.has_more,
        **edges(data),
    }


def _find(app: App, request: Request) -> Batch:
    return find_batch(
        _BATCH_ID.read(request), MESSAGE_BATCH_PREFIX, (ANTHROPIC,), app.batch_records
    )


def _object(batch: Batch, request: Request, app: App) -> MessageBatch:
    return message_batch_object(
        batch,
        batch_progress(batch, app),
        archived_at=_archived_at(batch, app),
        origin=_origin(request),
    )


def _archived_at(batch: Batch, app: App) -> str | None:
    kept_s = app.batch_limits.results_kept_s
    if not is_reached(batch.created_at, kept_s, app.clock.now()):
        return None
    return later(datetime.fromisoformat(batch.created_at), kept_s)


def _origin(request: Request) -> str:
    """Return the origin in the request, empty if it has no host; SDKs accept a path as well."""
    host = request.headers.get("host")
    scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else "http"
    return f"{scheme}://{host}" if host else ""


MESSAGE_BATCH_OPERATIONS: Final = (
    Operation(
        "POST /v1/messages/batches",
        create_message_batch,
        id="createMessageBatch",
        summary="Accept a batch of Messages requests; each becomes a job",
        body=MessageBatchBody,
        takes_upload=True,
        example={
            "requests": [
                {
                    "custom_id": "first",
                    "params": {
                        "model": "semantic-demo",
                        "max_tokens": 32,
                        "messages": [USER_TURN],
                    },
                }
            ]
        },
        reply=MessageBatch,
        responses={429: BATCHES_FULL},
    ),
    Operation(
        "GET /v1/messages/batches",
        list_message_batches,
        id="listMessageBatches",
        summary="List Message Batches, newest first",
        parameters=(_LIMIT, _AFTER_ID, _BEFORE_ID),
        reply=MessageBatchList,
    ),
    Operation(
        "GET /v1/messages/batches/{batch_id}",
        get_message_batch,
        id="getMessageBatch",
        summary="Return a Message Batch",
        parameters=(_BATCH_ID,),
        reply=MessageBatch,
    ),
    Operation(
        "DELETE /v1/messages/batches/{batch_id}",
        delete_message_batch,
        id="deleteMessageBatch",
        summary="Delete a Message Batch that has ended",
        parameters=(_BATCH_ID,),
        reply=DeletedMessageBatch,
        responses={409: "The batch has not ended"},
    ),
    Operation(
        "POST /v1/messages/batches/{batch_id}/cancel",
        cancel_message_batch,
        id="cancelMessageBatch",
        summary="Cancel a Message Batch; a repeated request changes nothing",
        parameters=(_BATCH_ID,),
        reply=MessageBatch,
    ),
    Operation(
        "GET /v1/messages/batches/{batch_id}/results",
        message_batch_results,
        id="getMessageBatchResults",
        summary="Return the results of a Message Batch that has ended, one JSON object per line",
        parameters=(_BATCH_ID,),
        media=JSONL,
        responses={409: "The batch has not ended"},
    ),
)
