"""``/v1/batches``: OpenAI's batches; a file holds the requests, two files hold the results."""

from __future__ import annotations

import json
from typing import Final, cast

from api.background.batches import (
    BatchServices,
    batch_id_of,
    find_batch,
    later,
    new_batch_id,
    wire_id,
)
from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.parameters import page_size, path, text
from api.http.replies import json_reply
from api.protocols.batches.endpoints import OPENAI_ENDPOINTS
from api.protocols.shared.timestamps import unix_seconds
from api.routes.files import find_file
from api.routes.message_batches import BATCHES_FULL, CLIENT_CHARS_MAX, batch_progress
from api.schemas.base import parse_body
from api.schemas.batches import (
    BatchBody,
    BatchFault,
    BatchFaults,
    BatchList,
    BatchObject,
    BatchUsage,
)
from domain.batch.jsonl import count_lines
from domain.batch.state import Batch, BatchState
from domain.errors import (
    BatchAlreadyEnded,
    BatchNotFound,
    FileNotFound,
    InvalidRequest,
    NotFound,
    PayloadMissing,
)
from domain.events.batch import BatchSubmitted
from domain.usecases.batches.batches import (
    accept_batch,
    cancel_batch,
    list_batches,
    require_batch_room,
)
from domain.usecases.batches.driver import file_of_part

PREFIX: Final = "batch_"
#: Names of the dialects of these batches in the log.
PROTOCOLS: Final = tuple(kind.protocol for kind in OPENAI_ENDPOINTS.values())

_STATUS: Final = {
    BatchState.VALIDATING: "validating",
    BatchState.IN_PROGRESS: "in_progress",
    BatchState.CANCELING: "cancelling",
    BatchState.FINALIZING: "finalizing",
    BatchState.FAILED: "failed",
}
_ENDED: Final = frozenset({"completed", "expired", "failed"})

_BATCH_ID: Final = path("batch_id", example=PREFIX + "0" * 32)
_LIMIT: Final = page_size(default=20, most=100)
_AFTER: Final = text(
    "after", "only batches older than this one", pattern=f"^{PREFIX}[0-9a-f]{{32}}$"
)


async def create_batch(request: Request, batches: BatchServices) -> Reply:
    """Accept the requests in a file; the batch thread validates them next."""
    batch = await batches.call(_accept, request, batches)
    batches.wake()
    return json_reply(await batches.call(_object, batch, batches))


async def list_openai_batches(request: Request, batches: BatchServices) -> Reply:
    """List batches, newest first."""
    return json_reply(await batches.call(_list, request, batches))


async def get_batch(request: Request, batches: BatchServices) -> Reply:
    """Return one batch."""
    batch = await batches.call(_find, request, batches)
    return json_reply(await batches.call(_object, batch, batches))


async def cancel_openai_batch(request: Request, batches: BatchServices) -> Reply:
    """Cancel a batch; a repeated request changes nothing."""
    batch = await batches.call(_find, request, batches)
    if _status(batch) in _ENDED:
        raise BatchAlreadyEnded(wire_id(batch.id, PREFIX), _status(batch))
    batch = await batches.call(cancel_batch, batch.id, log=batches.log, ids=batches.ids)
    batches.wake()
    return json_reply(await batches.call(_object, batch, batches))


def _accept(request: Request, batches: BatchServices) -> Batch:
    body = parse_body(BatchBody, request.body)
    file = find_file(body.input_file_id, batches)
    if file.facts.purpose != "batch" or file.facts.content is None:
        msg = f"{file.id} was not uploaded with the purpose batch"
        raise NotFound(msg)
    require_batch_room(batches_max=batches.rules.open_max, views=batches.views)
    client = request.headers.get("user-agent")
    submitted = BatchSubmitted(
        protocol=OPENAI_ENDPOINTS[body.endpoint].protocol,
        endpoint=body.endpoint,
        content=file.facts.content,
        lines=count_lines(file.facts.content, batches.payloads.get),
        expires_at=later(batches.clock.now(), batches.rules.window_s),
        client=client[:CLIENT_CHARS_MAX] if client else None,
        input_file=file.id,
        metadata=body.metadata,
        output_kept_s=body.output_expires_after.seconds if body.output_expires_after else None,
        webhook=batches.webhook_policy.url_of(body.webhook),
    )
    return accept_batch(
        new_batch_id(batches.ids),
        submitted,
        correlation_id=request.id,
        payloads={},
        is_checked=False,
        log=batches.log,
        ids=batches.ids,
    )


def _list(request: Request, batches: BatchServices) -> BatchList:
    after = _AFTER.read(request)
    try:
        page = list_batches(
            PROTOCOLS,
            limit=_LIMIT.read(request),
            log=batches.log,
            views=batches.views,
            after=batch_id_of(after, PREFIX) if after is not None else None,
        )
    except BatchNotFound as error:
        raise InvalidRequest(error.message, field="after") from error
    data = [_object(batch, batches) for batch in page.rows]
    return {
        "object": "list",
        "data": data,
        "has_more": page.has_more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def _find(request: Request, batches: BatchServices) -> Batch:
    return find_batch(_BATCH_ID.read(request), PREFIX, PROTOCOLS, batches.log)


def _status(batch: Batch) -> str:
    if batch.state is not BatchState.ENDED:
        cancelling = batch.state is BatchState.FINALIZING and batch.cancel_requested_at
        return "cancelling" if cancelling else _STATUS[batch.state]
    if batch.cancel_requested_at is not None:
        return "cancelled"
    return "expired" if batch.counts is not None and batch.counts.expired else "completed"


def _object(batch: Batch, batches: BatchServices) -> BatchObject:
    facts = batch.facts
    status = _status(batch)
    counts = batch_progress(batch, batches)
    ended_at = unix_seconds(batch.ended_at) if batch.ended_at else None
    shown: BatchObject = {
        "id": wire_id(batch.id, PREFIX),
        "object": "batch",
        "endpoint": facts.endpoint,
        "errors": _faults(batch, batches),
        "input_file_id": facts.input_file or "",
        "completion_window": "24h",
        "status": status,  # type: ignore[typeddict-item]  # one of them
        "output_file_id": _file(batch, "output", batches),
        "error_file_id": _file(batch, "error", batches),
        "created_at": unix_seconds(batch.created_at),
        "in_progress_at": _seconds(batch.started_at),
        "expires_at": unix_seconds(facts.expires_at),
        "finalizing_at": _seconds(batch.finalizing_at),
        "completed_at": ended_at if status == "completed" else None,
        "failed_at": ended_at if status == "failed" else None,
        "expired_at": ended_at if status == "expired" else None,
        "cancelling_at": _seconds(batch.cancel_requested_at),
        "cancelled_at": ended_at if status == "cancelled" else None,
        "request_counts": {
            "total": 0 if status in {"validating", "failed"} else facts.lines,
            "completed": counts["succeeded"],
            "failed": counts["errored"],
        },
        "metadata": dict(facts.metadata) if facts.metadata is not None else None,
    }
    if batch.state is BatchState.ENDED:
        shown["usage"] = _usage(batch)
    return shown


def _usage(batch: Batch) -> BatchUsage:
    usage = batch.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _faults(batch: Batch, batches: BatchServices) -> BatchFaults | None:
    if batch.errors is None:
        return None
    try:
        data = json.loads(batches.payloads.get(batch.errors))
    except PayloadMissing:
        data = []
    return {"object": "list", "data": cast("list[BatchFault]", data)}


def _file(batch: Batch, part: str, batches: BatchServices) -> str | None:
    if batch.state is not BatchState.ENDED:
        return None
    try:
        return find_file(file_of_part(batch.id, part), batches).id
    except FileNotFound:
        return None


def _seconds(at: str | None) -> int | None:
    return unix_seconds(at) if at else None


BATCH_OPERATIONS: Final = (
    Operation(
        "POST",
        "/v1/batches",
        create_batch,
        id="createBatch",
        summary="Accept the requests in a file; each becomes a job",
        body=BatchBody,
        example={
            "input_file_id": "file-" + "0" * 32,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
        reply=BatchObject,
        responses={404: "The file does not exist", 429: BATCHES_FULL},
    ),
    Operation(
        "GET",
        "/v1/batches",
        list_openai_batches,
        id="listBatches",
        summary="List batches, newest first",
        parameters=(_LIMIT, _AFTER),
        reply=BatchList,
    ),
    Operation(
        "GET",
        "/v1/batches/{batch_id}",
        get_batch,
        id="getBatch",
        summary="Return a batch",
        parameters=(_BATCH_ID,),
        reply=BatchObject,
    ),
    Operation(
        "POST",
        "/v1/batches/{batch_id}/cancel",
        cancel_openai_batch,
        id="cancelBatch",
        summary="Cancel a batch",
        parameters=(_BATCH_ID,),
        reply=BatchObject,
        responses={409: "The batch has ended already"},
    ),
)
