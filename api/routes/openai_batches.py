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
from api.presenters.batches import OPENAI_BATCH_PREFIX, openai_batch_object, openai_batch_status
from api.protocols.batches.endpoints import OPENAI_ENDPOINTS
from api.routes.files import find_file
from api.routes.message_batches import BATCHES_FULL, batch_progress, client_payload
from api.schemas.base import parse_body
from api.schemas.batches import (
    BatchBody,
    BatchFault,
    BatchList,
    BatchObject,
)
from domain.batch.jsonl import count_lines
from domain.batch.state import Batch, BatchState
from domain.errors import BatchAlreadyEnded, InvalidRequest, NotFound
from domain.events.batch import BatchSubmitted
from domain.not_found import BatchNotFound, FileNotFound, PayloadMissing
from domain.usecases.batches.driver import file_of_part

#: Names of the dialects of these batches in the log.
PROTOCOLS: Final = tuple(kind.protocol for kind in OPENAI_ENDPOINTS.values())

_ENDED: Final = frozenset({"completed", "expired", "failed"})

_BATCH_ID: Final = path("batch_id", example=OPENAI_BATCH_PREFIX + "0" * 32)
_LIMIT: Final = page_size(default=20, most=100)
_AFTER: Final = text(
    "after", "only batches older than this one", pattern=f"^{OPENAI_BATCH_PREFIX}[0-9a-f]{{32}}$"
)


async def create_batch(request: Request, batches: BatchServices) -> Reply:
    """Accept the requests in a file; the batch thread validates them next."""
    await batches.call(batches.require_admission)
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
    if openai_batch_status(batch) in _ENDED:
        raise BatchAlreadyEnded(wire_id(batch.id, OPENAI_BATCH_PREFIX), openai_batch_status(batch))
    batch = await batches.call(batches.records.cancel, batch.id)
    batches.wake()
    return json_reply(await batches.call(_object, batch, batches))


def _accept(request: Request, batches: BatchServices) -> Batch:
    body = parse_body(BatchBody, request.body)
    file = find_file(body.input_file_id, batches)
    batches.ownership.require(request.caller, file.id, FileNotFound(body.input_file_id))
    if file.facts.purpose != "batch" or file.facts.content is None:
        msg = f"{file.id} was not uploaded with the purpose batch"
        raise NotFound(msg)
    batches.records.require_room(batches_max=batches.rules.open_max, owner=request.caller.sharer)
    client = client_payload(request)
    submitted = BatchSubmitted(
        protocol=OPENAI_ENDPOINTS[body.endpoint].protocol,
        endpoint=body.endpoint,
        content=file.facts.content,
        lines=count_lines(file.facts.content, batches.payloads.get),
        expires_at=later(batches.clock.now(), batches.rules.window_s),
        client_name=next(iter(client), None),
        input_file=file.id,
        metadata=body.metadata,
        output_kept_s=body.output_expires_after.seconds if body.output_expires_after else None,
        webhook=batches.webhook_policy.url_of(body.webhook),
        trace=str(request.trace),
        owner=request.caller.owner,
        cache_owner=batches.ownership.cache_owner_of(request.caller),
    )
    return batches.records.accept(
        new_batch_id(batches.ids),
        submitted,
        correlation_id=request.id,
        payloads=client,
        is_checked=False,
    )


def _list(request: Request, batches: BatchServices) -> BatchList:
    after = _AFTER.read(request)
    try:
        page = batches.records.page(
            PROTOCOLS,
            limit=_LIMIT.read(request),
            after=batch_id_of(after, OPENAI_BATCH_PREFIX) if after is not None else None,
            owner=request.caller.sees,
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
    return find_batch(_BATCH_ID.read(request), OPENAI_BATCH_PREFIX, PROTOCOLS, batches.records)


def _object(batch: Batch, batches: BatchServices) -> BatchObject:
    return openai_batch_object(
        batch,
        batch_progress(batch, batches),
        faults=_faults(batch, batches),
        output_file=_file(batch, "output", batches),
        error_file=_file(batch, "error", batches),
    )


def _faults(batch: Batch, batches: BatchServices) -> list[BatchFault] | None:
    if batch.errors is None:
        return None
    try:
        return cast("list[BatchFault]", json.loads(batches.payloads.get(batch.errors)))
    except PayloadMissing:
        return []


def _file(batch: Batch, part: str, batches: BatchServices) -> str | None:
    if batch.state is not BatchState.ENDED:
        return None
    try:
        return find_file(file_of_part(batch.id, part), batches).id
    except FileNotFound:
        return None


BATCH_OPERATIONS: Final = (
    Operation(
        "POST /v1/batches",
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
        "GET /v1/batches",
        list_openai_batches,
        id="listBatches",
        summary="List batches, newest first",
        parameters=(_LIMIT, _AFTER),
        reply=BatchList,
    ),
    Operation(
        "GET /v1/batches/{batch_id}",
        get_batch,
        id="getBatch",
        summary="Return a batch",
        parameters=(_BATCH_ID,),
        reply=BatchObject,
    ),
    Operation(
        "POST /v1/batches/{batch_id}/cancel",
        cancel_openai_batch,
        id="cancelBatch",
        summary="Cancel a batch",
        parameters=(_BATCH_ID,),
        reply=BatchObject,
        responses={409: "The batch has ended already"},
    ),
)
