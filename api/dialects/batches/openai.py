"""``/v1/batches``: OpenAI's batches; a file holds the requests, two files hold the results."""

from __future__ import annotations

import json
from typing import Final, cast

from api.app import App
from api.dialects.batches.anthropic import BATCHES_FULL, batch_progress, client_payload
from api.dialects.batches.bodies import (
    BatchBody,
    BatchFault,
    BatchList,
    BatchObject,
)
from api.dialects.batches.files import find_file
from api.dialects.batches.lines import OPENAI_ENDPOINTS
from api.dialects.batches.names import (
    batch_id_of,
    find_batch,
    later,
    new_batch_id,
    wire_id,
)
from api.dialects.batches.objects import (
    OPENAI_BATCH_PREFIX,
    openai_batch_object,
    openai_batch_status,
)
from api.http.bodies import parse_body
from api.http.messages import Reply, Request
from api.http.operation import Operation
from api.http.parameters import page_size, path, text
from api.http.sse import json_reply
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
from domain.usecases.batches.driver import file_of_part

#: Names of the dialects of these batches in the log.
PROTOCOLS: Final = tuple(kind.protocol for kind in OPENAI_ENDPOINTS.values())

_ENDED: Final = frozenset({"completed", "expired", "failed"})

_BATCH_ID: Final = path("batch_id", example=OPENAI_BATCH_PREFIX + "0" * 32)
_LIMIT: Final = page_size(default=20, most=100)
_AFTER: Final = text(
    "after", "only batches older than this one", pattern=f"^{OPENAI_BATCH_PREFIX}[0-9a-f]{{32}}$"
)


async def create_batch(app: App, request: Request) -> Reply:
    """Accept the requests in a file; the batch thread validates them next."""
    await app.call(app.controls.require_admission)
    batch = await app.call(_accept, app, request)
    app.wake_batches()
    return json_reply(await app.call(_object, batch, app))


async def list_openai_batches(app: App, request: Request) -> Reply:
    """List batches, newest first."""
    return json_reply(await app.call(_list, app, request))


async def get_batch(app: App, request: Request) -> Reply:
    """Return one batch."""
    batch = await app.call(_find, app, request)
    return json_reply(await app.call(_object, batch, app))


async def cancel_openai_batch(app: App, request: Request) -> Reply:
    """Cancel a batch; a repeated request changes nothing."""
    batch = await app.call(_find, app, request)
    if openai_batch_status(batch) in _ENDED:
        raise BatchAlreadyEnded(wire_id(batch.id, OPENAI_BATCH_PREFIX), openai_batch_status(batch))
    batch = await app.call(app.batch_records.cancel, batch.id)
    app.wake_batches()
    return json_reply(await app.call(_object, batch, app))


def _accept(app: App, request: Request) -> Batch:
    body = parse_body(BatchBody, request.body)
    file = find_file(body.input_file_id, app)
    app.ownership.require(request.caller, file.id, FileNotFound(body.input_file_id))
    if file.facts.purpose != "batch" or file.facts.content is None:
        msg = f"{file.id} was not uploaded with the purpose batch"
        raise NotFound(msg)
    app.batch_records.require_room(
        batches_max=app.batch_limits.open_max, owner=request.caller.sharer
    )
    client = client_payload(request)
    submitted = BatchSubmitted(
        protocol=OPENAI_ENDPOINTS[body.endpoint].protocol,
        endpoint=body.endpoint,
        content=file.facts.content,
        lines=count_lines(file.facts.content, app.payloads.get),
        expires_at=later(app.clock.now(), app.batch_limits.window_s),
        client_name=next(iter(client), None),
        input_file=file.id,
        metadata=body.metadata,
        output_kept_s=body.output_expires_after.seconds if body.output_expires_after else None,
        webhook=app.webhook_policy.url_of(body.webhook),
        trace=str(request.trace),
        owner=request.caller.owner,
        cache_owner=app.ownership.cache_owner_of(request.caller),
    )
    return app.batch_records.accept(
        new_batch_id(app.ids),
        submitted,
        correlation_id=request.id,
        payloads=client,
        is_checked=False,
    )


def _list(app: App, request: Request) -> BatchList:
    after = _AFTER.read(request)
    try:
        page = app.batch_records.page(
            PROTOCOLS,
            limit=_LIMIT.read(request),
            after=batch_id_of(after, OPENAI_BATCH_PREFIX) if after is not None else None,
            owner=request.caller.sees,
        )
    except BatchNotFound as error:
        raise InvalidRequest(error.message, field="after") from error
    data = [_object(batch, app) for batch in page.rows]
    return {
        "object": "list",
        "data": data,
        "has_more": page.has_more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def _find(app: App, request: Request) -> Batch:
    return find_batch(_BATCH_ID.read(request), OPENAI_BATCH_PREFIX, PROTOCOLS, app.batch_records)


def _object(batch: Batch, app: App) -> BatchObject:
    return openai_batch_object(
        batch,
        batch_progress(batch, app),
        faults=_faults(batch, app),
        output_file=_file(batch, "output", app),
        error_file=_file(batch, "error", app),
    )


def _faults(batch: Batch, app: App) -> list[BatchFault] | None:
    if batch.errors is None:
        return None
    try:
        return cast("list[BatchFault]", json.loads(app.payloads.get(batch.errors)))
    except PayloadMissing:
        return []


def _file(batch: Batch, part: str, app: App) -> str | None:
    if batch.state is not BatchState.ENDED:
        return None
    try:
        return find_file(file_of_part(batch.id, part), app).id
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
