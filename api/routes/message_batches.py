"""``/v1/messages/batches``: Anthropic's Message Batches."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Final

from api.background.batches import (
    BatchServices,
    Blocks,
    batch_id_of,
    find_batch,
    is_reached,
    later,
    new_batch_id,
    wire_id,
)
from api.http.json_bounds import BATCH
from api.http.messages import Reply, Request, StreamReply
from api.http.operation import Operation
from api.http.parameters import page_size, path, text
from api.http.replies import json_reply
from api.presenters.batches import (
    MESSAGE_BATCH_PREFIX,
    batch_counts,
    message_batch_object,
    message_batch_status,
)
from api.protocols.batches.endpoints import ANTHROPIC, MESSAGES_PATH
from api.routes.generate import USER_TURN
from api.schemas.base import parse_body
from api.schemas.batches import (
    BatchCounts,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchBody,
    MessageBatchList,
)
from domain.batch.jsonl import pack
from domain.batch.state import Batch
from domain.errors import BatchNotEnded, InvalidRequest, NotFound
from domain.events.batch import BatchSubmitted
from domain.not_found import BatchNotFound
from domain.usecases.jobs.submit import text_bytes
from domain.values import Digest, digest_of

#: Characters of a User-Agent that are stored.
CLIENT_CHARS_MAX: Final = 256
JSONL: Final = "application/x-jsonl"
#: For the document: the failure with status 429 of both operations that create batches.
BATCHES_FULL: Final = "Too many batches are open; Retry-After has the seconds to wait"

_ID: Final = f"^{MESSAGE_BATCH_PREFIX}[0-9a-f]{{32}}$"
_BATCH_ID: Final = path("batch_id", example=MESSAGE_BATCH_PREFIX + "0" * 32)
_LIMIT: Final = page_size(default=20, most=1000)
_AFTER_ID: Final = text("after_id", "only batches older than this one", pattern=_ID)
_BEFORE_ID: Final = text("before_id", "only batches newer than this one", pattern=_ID)


async def create_message_batch(request: Request, batches: BatchServices) -> Reply:
    """Accept a batch; a request that is not valid gets its error as its result."""
    await batches.call(batches.require_admission)
    batch = await batches.call(_accept, request, batches)
    batches.wake()
    return json_reply(await batches.call(_object, batch, request, batches))


async def list_message_batches(request: Request, batches: BatchServices) -> Reply:
    """List batches, newest first."""
    return json_reply(await batches.call(_list, request, batches))


async def get_message_batch(request: Request, batches: BatchServices) -> Reply:
    """Return one batch."""
    batch = await batches.call(_find, request, batches)
    return json_reply(await batches.call(_object, batch, request, batches))


async def cancel_message_batch(request: Request, batches: BatchServices) -> Reply:
    """Cancel a batch; one that has ended stays as it is."""
    batch = await batches.call(_find, request, batches)
    batch = await batches.call(batches.records.cancel, batch.id)
    batches.wake()
    return json_reply(await batches.call(_object, batch, request, batches))


async def delete_message_batch(request: Request, batches: BatchServices) -> Reply:
    """Delete a batch that has ended."""
    batch = await batches.call(_find, request, batches)
    name = wire_id(batch.id, MESSAGE_BATCH_PREFIX)
    if not batch.state.is_terminal:
        raise BatchNotEnded(name, message_batch_status(batch))
    await batches.call(batches.records.delete, batch.id)
    body: DeletedMessageBatch = {"id": name, "type": "message_batch_deleted"}
    return json_reply(body)


async def message_batch_results(request: Request, batches: BatchServices) -> StreamReply:
    """Return the results, a line for each request in the order of the requests."""
    batch = await batches.call(_find, request, batches)
    name = wire_id(batch.id, MESSAGE_BATCH_PREFIX)
    if not batch.state.is_terminal:
        raise BatchNotEnded(name, message_batch_status(batch))
    if _archived_at(batch, batches) is not None:
        msg = f"the results of batch {name} have expired"
        raise NotFound(msg)
    lines = (line for _, line in batches.lines.results(batch))
    return StreamReply(pieces=Blocks(lines, batches.call), content_type=JSONL)


def _accept(request: Request, batches: BatchServices) -> Batch:
    body = parse_body(MessageBatchBody, request.body, BATCH)
    rules = batches.rules
    if len(body.requests) > rules.lines_max:
        msg = f"{len(body.requests)} requests are more than the {rules.lines_max} of one batch"
        raise InvalidRequest(msg, field="requests")
    batches.records.require_room(batches_max=rules.open_max, owner=request.caller.sharer)
    seen: set[str] = set()
    for index, one in enumerate(body.requests):
        if one.custom_id in seen:
            msg = f"{one.custom_id} is not unique in this batch"
            raise InvalidRequest(msg, field=f"requests.{index}.custom_id")
        seen.add(one.custom_id)
    packed = pack(b"\n".join(_line(one.custom_id, one.params) for one in body.requests))
    client = client_payload(request)
    submitted = BatchSubmitted(
        protocol=ANTHROPIC,
        endpoint=MESSAGES_PATH,
        content=packed.digest,
        lines=packed.lines,
        expires_at=later(batches.clock.now(), rules.window_s),
        client_name=next(iter(client), None),
        webhook=batches.webhook_policy.url_of(body.webhook),
        trace=str(request.trace),
        owner=request.caller.owner,
        cache_owner=batches.ownership.cache_owner_of(request.caller),
    )
    return batches.records.accept(
        new_batch_id(batches.ids),
        submitted,
        correlation_id=request.id,
        payloads={**packed.payloads, **client},
        is_checked=True,
    )


def client_payload(request: Request) -> dict[Digest, bytes]:
    """Return the text that names the client by its digest; empty if it sends none."""
    name = text_bytes(request.headers.get("user-agent", "")[:CLIENT_CHARS_MAX])
    return {digest_of(name): name} if name else {}


def _line(custom_id: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"custom_id": custom_id, "params": params}, separators=(",", ":")).encode()


def _list(request: Request, batches: BatchServices) -> MessageBatchList:
    limit = _LIMIT.read(request)
    after, before = _AFTER_ID.read(request), _BEFORE_ID.read(request)
    try:
        page = batches.records.page(
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
    data = [_object(batch, request, batches) for batch in page.rows]
    return {
        "data": data,
        "has_more": page.has_more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def _find(request: Request, batches: BatchServices) -> Batch:
    return find_batch(_BATCH_ID.read(request), MESSAGE_BATCH_PREFIX, (ANTHROPIC,), batches.records)


def _object(batch: Batch, request: Request, batches: BatchServices) -> MessageBatch:
    return message_batch_object(
        batch,
        batch_progress(batch, batches),
        archived_at=_archived_at(batch, batches),
        origin=_origin(request),
    )


def batch_progress(batch: Batch, batches: BatchServices) -> BatchCounts:
    """Return the numbers of requests by state as they are now; blocks."""
    return batch_counts(batch, None if batch.counts else batches.records.views.tally(batch.id))


def _archived_at(batch: Batch, batches: BatchServices) -> str | None:
    kept_s = batches.rules.results_kept_s
    if not is_reached(batch.created_at, kept_s, batches.clock.now()):
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
