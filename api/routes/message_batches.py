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
from api.background.webhooks import webhook_url
from api.http.messages import Reply, Request, StreamReply
from api.http.query import text, whole_number
from api.http.replies import json_reply
from api.protocols.batches.endpoints import ANTHROPIC, MESSAGES_PATH
from api.schemas.base import parse_body
from api.schemas.batches import (
    BatchCounts,
    DeletedMessageBatch,
    MessageBatch,
    MessageBatchBody,
    MessageBatchList,
)
from api.services import Services
from domain.batch.jsonl import pack
from domain.batch.state import Batch, BatchState
from domain.errors import BatchNotEnded, BatchNotFound, InvalidRequest, NotFound
from domain.events.batch import BatchSubmitted
from domain.usecases.batches.batches import (
    accept_batch,
    cancel_batch,
    delete_batch,
    list_batches,
    require_batch_room,
)
from domain.values import JobStatus

PREFIX: Final = "msgbatch_"
PAGE_DEFAULT: Final = 20
PAGE_MAX: Final = 1000
#: Characters of a User-Agent that are kept.
CLIENT_CHARS_MAX: Final = 256
JSONL: Final = "application/x-jsonl"

_STATUS: Final = {
    BatchState.CANCELING: "canceling",
    BatchState.ENDED: "ended",
    BatchState.FAILED: "ended",
}


async def create_message_batch(request: Request, *, services: Services) -> Reply:
    """Accept a batch; what is wrong with single requests becomes their result."""
    batch = await services.call(_accept, request, services)
    services.batches.wake()
    return json_reply(await services.call(_object, batch, request, services))


async def list_message_batches(request: Request, *, services: Services) -> Reply:
    """List batches, newest first."""
    return json_reply(await services.call(_list, request, services))


async def get_message_batch(request: Request, *, services: Services) -> Reply:
    """Show one batch."""
    batch = await services.call(_find, request, services)
    return json_reply(await services.call(_object, batch, request, services))


async def cancel_message_batch(request: Request, *, services: Services) -> Reply:
    """Ask for the early end of a batch; one that has ended is shown as it is."""
    batch = await services.call(_find, request, services)
    batch = await services.call(cancel_batch, batch.id, log=services.log, ids=services.ids)
    services.batches.wake()
    return json_reply(await services.call(_object, batch, request, services))


async def delete_message_batch(request: Request, *, services: Services) -> Reply:
    """Show a batch no more."""
    batch = await services.call(_find, request, services)
    name = wire_id(batch.id, PREFIX)
    if not batch.state.is_terminal:
        raise BatchNotEnded(name, _status(batch))
    await services.call(delete_batch, batch.id, log=services.log, ids=services.ids)
    body: DeletedMessageBatch = {"id": name, "type": "message_batch_deleted"}
    return json_reply(body)


async def message_batch_results(request: Request, *, services: Services) -> StreamReply:
    """Send the results, a line for each request in the order of the requests."""
    batch = await services.call(_find, request, services)
    name = wire_id(batch.id, PREFIX)
    if not batch.state.is_terminal:
        raise BatchNotEnded(name, _status(batch))
    if _archived_at(batch, services) is not None:
        msg = f"the results of batch {name} are not kept any more"
        raise NotFound(msg)
    lines = (line for _, line in services.batches.lines.results(batch))
    return StreamReply(pieces=Blocks(lines, services.call), content_type=JSONL)


def _accept(request: Request, services: Services) -> Batch:
    desk = services.batches
    body = parse_body(MessageBatchBody, request.body)
    rules = desk.rules
    if len(body.requests) > rules.lines_max:
        msg = f"{len(body.requests)} requests are more than the {rules.lines_max} of one batch"
        raise InvalidRequest(msg, field="requests")
    require_batch_room(batches_max=rules.open_max, views=desk.views)
    seen: set[str] = set()
    for index, one in enumerate(body.requests):
        if one.custom_id in seen:
            msg = f"{one.custom_id} stands twice in this batch"
            raise InvalidRequest(msg, field=f"requests.{index}.custom_id")
        seen.add(one.custom_id)
    packed = pack(b"\n".join(_line(one.custom_id, one.params) for one in body.requests))
    client = request.headers.get("user-agent")
    submitted = BatchSubmitted(
        protocol=ANTHROPIC,
        endpoint=MESSAGES_PATH,
        content=packed.digest,
        lines=packed.lines,
        expires_at=later(services.clock.now(), rules.window_s),
        client=client[:CLIENT_CHARS_MAX] if client else None,
        webhook=webhook_url(body.webhook, services.webhooks),
    )
    return accept_batch(
        new_batch_id(services.ids),
        submitted,
        correlation_id=request.id,
        payloads=packed.payloads,
        is_checked=True,
        log=services.log,
        ids=services.ids,
    )


def _line(custom_id: str, params: dict[str, Any]) -> bytes:
    return json.dumps({"custom_id": custom_id, "params": params}, separators=(",", ":")).encode()


def _list(request: Request, services: Services) -> MessageBatchList:
    query = request.query
    limit = whole_number(query, "limit", default=PAGE_DEFAULT, least=1, most=PAGE_MAX)
    after, before = text(query, "after_id"), text(query, "before_id")
    try:
        page = list_batches(
            (ANTHROPIC,),
            limit=limit,
            log=services.log,
            views=services.batches.views,
            after=batch_id_of(after, PREFIX) if after is not None else None,
            before=batch_id_of(before, PREFIX) if before is not None else None,
        )
    except BatchNotFound as error:
        raise InvalidRequest(
            error.message, field="after_id" if before is None else "before_id"
        ) from error
    data = [_object(batch, request, services) for batch in page.rows]
    return {
        "data": data,
        "has_more": page.has_more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def _find(request: Request, services: Services) -> Batch:
    return find_batch(request.params["batch_id"], PREFIX, (ANTHROPIC,), services.log)


def _object(batch: Batch, request: Request, services: Services) -> MessageBatch:
    name = wire_id(batch.id, PREFIX)
    archived_at = _archived_at(batch, services)
    has_results = batch.state.is_terminal and archived_at is None
    now = batch_progress(batch, services.batches)
    nothing: BatchCounts = {
        "processing": batch.facts.lines,
        "succeeded": 0,
        "errored": 0,
        "canceled": 0,
        "expired": 0,
    }
    return {
        "id": name,
        "type": "message_batch",
        "processing_status": _status(batch),  # type: ignore[typeddict-item]  # one of the three
        "request_counts": now if batch.state.is_terminal else nothing,
        "progress": now,
        "created_at": batch.created_at,
        "expires_at": batch.facts.expires_at,
        "ended_at": batch.ended_at,
        "cancel_initiated_at": batch.cancel_requested_at,
        "archived_at": archived_at,
        "results_url": f"{_origin(request)}{MESSAGES_PATH}/batches/{name}/results"
        if has_results
        else None,
    }


def batch_progress(batch: Batch, desk: BatchServices) -> BatchCounts:
    """Return what became of the lines so far; blocks."""
    if batch.counts is not None:
        counts = batch.counts
        return {
            "processing": batch.facts.lines - counts.done,
            "succeeded": counts.succeeded,
            "errored": counts.errored,
            "canceled": counts.canceled,
            "expired": counts.expired,
        }
    tally = desk.views.tally(batch.id)
    ended = {status: tally.by_status.get(status, 0) for status in JobStatus if status.is_terminal}
    return {
        "processing": batch.facts.lines - sum(ended.values()),
        "succeeded": ended[JobStatus.COMPLETED],
        "errored": ended[JobStatus.FAILED],
        "canceled": ended[JobStatus.CANCELLED],
        "expired": ended[JobStatus.EXPIRED],
    }


def _status(batch: Batch) -> str:
    return _STATUS.get(batch.state, "in_progress")


def _archived_at(batch: Batch, services: Services) -> str | None:
    kept_s = services.batches.rules.results_kept_s
    if not is_reached(batch.created_at, kept_s, services.clock.now()):
        return None
    return later(datetime.fromisoformat(batch.created_at), kept_s)


def _origin(request: Request) -> str:
    """Return how the client reaches this service; SDKs take a path as well."""
    host = request.headers.get("host")
    scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else "http"
    return f"{scheme}://{host}" if host else ""
