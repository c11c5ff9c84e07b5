"""``/v1/messages/batches``: Anthropic's Message Batches."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Annotated, Any, Final, Literal, NotRequired

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.batches.lines import ANTHROPIC, MESSAGES_PATH, BatchLines, LineLabels
from api.dialects.batches.objects import (
    BATCHES_FULL,
    MESSAGE_BATCHES,
    BatchCounts,
    BatchOptions,
    accept_batch,
    batch_progress,
    blocks_of,
    later,
)
from api.dialects.generate import USER_TURN
from api.http.bodies import BATCH, Items
from api.http.messages import Request, Rows, StreamReply, rows_of, shown
from api.http.operation import Operation, body_of, page_size, path, text
from domain.batch.jsonl import pack
from domain.batch.state import Batch, BatchState
from domain.errors import BatchNotEnded, InvalidRequest, NotFound
from domain.values import rfc3339


class BatchRequest(LineLabels):
    """One request; an error in its ``params`` becomes its result.

    ``tags``, ``metadata`` and ``urgency`` are additions: those of the job of the request.
    """

    # Its line keeps what is not known here, and names it as without effect.
    model_config = ConfigDict(extra="allow")

    custom_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any]


class MessageBatchBody(BatchOptions):
    """The body of ``POST /v1/messages/batches``: requests to answer within a day."""

    requests: Annotated[Items[BatchRequest], Field(min_length=1)]


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


class DeletedMessageBatch(TypedDict):
    """The reply to the deletion of a batch."""

    id: str
    type: Literal["message_batch_deleted"]


_MESSAGE_BATCH_STATUS: Final = {
    BatchState.CANCELING: "canceling",
    BatchState.ENDED: "ended",
    BatchState.FAILED: "ended",
}


def message_batch_status(batch: Batch) -> str:
    """Return the status of a batch in Anthropic's words."""
    return _MESSAGE_BATCH_STATUS.get(batch.state, "in_progress")


def _object(batch: Batch, request: Request, app: App) -> MessageBatch:
    counts, archived_at = batch_progress(batch, app), _archived_at(batch, app)
    name, is_over = MESSAGE_BATCHES.name(batch), batch.state.is_terminal
    has_results = is_over and archived_at is None
    none_done = dict.fromkeys(counts, 0) | {"processing": batch.facts.lines}
    path_of_results = f"{MESSAGES_PATH}/batches/{name}/results"
    whole = shown(
        MessageBatch,
        batch,
        batch.facts,
        id=name,
        type="message_batch",
        processing_status=message_batch_status(batch),
        request_counts=counts if is_over else none_done,
        progress=counts,
        cancel_initiated_at=batch.cancel_requested_at,
        archived_at=archived_at,
        results_url=_origin(request) + path_of_results if has_results else None,
    )
    if batch.facts.start_after is not None:
        whole["start_after"] = batch.facts.start_after
    return whole


JSONL: Final = "application/x-jsonl"

_ID: Final = MESSAGE_BATCHES.id_pattern
_BATCH_ID: Final = path("batch_id", example=MESSAGE_BATCHES.prefix + "0" * 32)
_LIMIT: Final = page_size(default=20, most=1000)
_AFTER_ID: Final = text("after_id", "only batches older than this one", pattern=_ID)
_BEFORE_ID: Final = text("before_id", "only batches newer than this one", pattern=_ID)


def create_message_batch(app: App, request: Request) -> MessageBatch:
    """Accept a batch of Messages requests; each becomes a job.

    A request that is not valid gets its error as its result.
    """
    app.controls.require_admission()
    body = body_of(MessageBatchBody, request, bounds=BATCH)
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
    batch = accept_batch(
        app,
        request,
        body,
        payloads=packed.payloads,
        is_checked=True,
        protocol=ANTHROPIC,
        endpoint=MESSAGES_PATH,
        content=packed.digest,
        lines=packed.lines,
    )
    app.wake_batches()
    return _object(batch, request, app)


def list_message_batches(app: App, request: Request) -> Rows[MessageBatch]:
    """List Message Batches, newest first."""
    page = MESSAGE_BATCHES.page(
        app,
        request,
        _LIMIT.read(request),
        after_id=_AFTER_ID.read(request),
        before_id=_BEFORE_ID.read(request),
    )
    return rows_of([_object(batch, request, app) for batch in page.rows], has_more=page.has_more)


def _line(one: BatchRequest) -> bytes:
    labels = one.model_dump(exclude={"custom_id", "params"}, exclude_none=True)
    line = {"custom_id": one.custom_id, "params": one.params, **labels}
    return json.dumps(line, separators=(",", ":")).encode()


def get_message_batch(app: App, request: Request) -> MessageBatch:
    """Return a Message Batch."""
    return _object(_find(app, request), request, app)


def cancel_message_batch(app: App, request: Request) -> MessageBatch:
    """Cancel a Message Batch; a repeated request changes nothing."""
    batch = app.batch_records.cancel(_find(app, request).id)
    app.wake_batches()
    return _object(batch, request, app)


def delete_message_batch(app: App, request: Request) -> DeletedMessageBatch:
    """Delete a Message Batch that has ended."""
    batch = _find(app, request)
    name = MESSAGE_BATCHES.name(batch)
    if not batch.state.is_terminal:
        raise BatchNotEnded(name, message_batch_status(batch))
    app.batch_records.delete(batch.id)
    return {"id": name, "type": "message_batch_deleted"}


def get_message_batch_results(app: App, request: Request) -> StreamReply:
    """Return the results of a Message Batch that has ended, one JSON object per line."""
    batch = _find(app, request)
    name = MESSAGE_BATCHES.name(batch)
    if not batch.state.is_terminal:
        raise BatchNotEnded(name, message_batch_status(batch))
    if _archived_at(batch, app) is not None:
        raise NotFound(f"the results of batch {name} have expired")
    lines = (line for _, line in BatchLines(app).results(batch))
    return StreamReply(pieces=blocks_of(lines, app.call), content_type=JSONL)


def _find(app: App, request: Request) -> Batch:
    return MESSAGE_BATCHES.find(_BATCH_ID.read(request), app)


def _archived_at(batch: Batch, app: App) -> str | None:
    kept_s = app.batch_limits.results_kept_s
    at = later(datetime.fromisoformat(batch.created_at), kept_s)
    return at if rfc3339(app.clock.now()) >= at else None


def _origin(request: Request) -> str:
    """Return the origin in the request, empty if it has no host; SDKs accept a path as well."""
    host = request.headers.get("host")
    scheme = "https" if request.headers.get("x-forwarded-proto") == "https" else "http"
    return f"{scheme}://{host}" if host else ""


MESSAGE_BATCH_OPERATIONS: Final = (
    Operation(
        "POST /v1/messages/batches",
        create_message_batch,
        body=MessageBatchBody,
        takes_upload=True,
        example={
            "requests": [
                {
                    "custom_id": "first",
                    "params": {"model": "semantic-demo", "max_tokens": 32, "messages": [USER_TURN]},
                }
            ]
        },
        responses={429: BATCHES_FULL},
    ),
    Operation(
        "GET /v1/messages/batches", list_message_batches, parameters=(_LIMIT, _AFTER_ID, _BEFORE_ID)
    ),
    Operation("GET /v1/messages/batches/{batch_id}", get_message_batch, parameters=(_BATCH_ID,)),
    Operation(
        "DELETE /v1/messages/batches/{batch_id}",
        delete_message_batch,
        parameters=(_BATCH_ID,),
        responses={409: "The batch has not ended"},
    ),
    Operation(
        "POST /v1/messages/batches/{batch_id}/cancel", cancel_message_batch, parameters=(_BATCH_ID,)
    ),
    Operation(
        "GET /v1/messages/batches/{batch_id}/results",
        get_message_batch_results,
        parameters=(_BATCH_ID,),
        media=JSONL,
        responses={409: "The batch has not ended"},
    ),
)
