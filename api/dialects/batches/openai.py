"""``/v1/files`` and ``/v1/batches``: OpenAI's batches, with files for requests and results."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Final, Literal, NotRequired, cast

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.batches.lines import OPENAI_ENDPOINTS, BatchLines
from api.dialects.batches.objects import (
    BATCHES_FULL,
    OPENAI_BATCHES,
    BatchOptions,
    accept_batch,
    batch_progress,
    blocks_of,
    later,
    new_file_id,
)
from api.dialects.openai_chat.bodies import CachedTokens, ReasoningTokens
from api.errors import TransportError
from api.generation import unix_seconds
from api.http.bodies import (
    KeptSeconds,
    Name,
    Pairs,
    RequestBody,
    VendorBody,
    parse_body,
    without_effect,
)
from api.http.messages import (
    Deleted,
    Listing,
    Request,
    StreamReply,
    listing_of,
    shown,
)
from api.http.multipart import parse_upload
from api.http.operation import Operation, Order, body_of, choice, page_size, path, text
from domain.batch.driver import file_of_part
from domain.batch.jsonl import count_lines, pack, read_content, read_filename
from domain.batch.ports import FileId, StoredFile
from domain.batch.state import Batch, BatchId, BatchState
from domain.errors import (
    TEXT_LOST,
    BatchAlreadyEnded,
    FileNotFound,
    NotFound,
    PayloadMissing,
)
from domain.events.batch import FileCreated
from domain.values import Digest, Usage


class KeptFor(RequestBody):
    """Time until the files of the results expire."""

    anchor: Literal["created_at"]
    seconds: KeptSeconds


class FileForm(VendorBody):
    """The fields of an upload; the file is a part of its own."""

    purpose: Literal["batch", "assistants", "fine-tune", "vision", "user_data"]
    expires_after_anchor: Annotated[Literal["created_at"], Field(alias="expires_after[anchor]")] = (
        "created_at"
    )
    expires_after_seconds: Annotated[KeptSeconds, Field(alias="expires_after[seconds]")] = (
        30 * 24 * 3600
    )


class FileUpload(FileForm):
    """The form of an upload, for the document; the parser does not read the file as a field."""

    file: Annotated[str, Field(json_schema_extra={"format": "binary"})]


class FileObject(TypedDict):
    """A file."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: NotRequired[int]
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: NotRequired[str]


#: The name of a file that was uploaded without one.
_UNNAMED: Final = "file"


def file_object(file: StoredFile, get: Callable[[Digest], bytes]) -> FileObject:
    """Return a file; ``get`` returns a payload."""
    facts = file.facts
    whole = shown(
        FileObject,
        file,
        facts,
        object="file",
        created_at=unix_seconds(file.created_at),
        filename=_filename(facts, get),
        status="processed",
    )
    if facts.expires_at is not None:
        whole["expires_at"] = unix_seconds(facts.expires_at)
    return whole


def _filename(facts: FileCreated, get: Callable[[Digest], bytes]) -> str:
    if facts.content is None:
        return f"{facts.batch}_{facts.part}.jsonl"
    with suppress(*TEXT_LOST):
        return read_filename(facts.content, get) or _UNNAMED
    return _UNNAMED


_FILE_NAME: Final = re.compile(r"file-[0-9a-f]{32}")
_DIGITS: Final = re.compile(r"[0-9]{1,10}")
_OCTETS: Final = "application/octet-stream"

_FILE_ID: Final = path("file_id", example="file-" + "0" * 32)
_FILES_LIMIT: Final = page_size(default=10_000, most=10_000)
_FILES_AFTER: Final = text(
    "after",
    "only files behind this one, in the order of the list",
    pattern=f"^{_FILE_NAME.pattern}$",
)
_ORDER: Final = choice("order", "order by creation", Order, default=Order.DESC)
_PURPOSE: Final = text("purpose", "only files with this purpose")


def create_file(app: App, request: Request) -> FileObject:
    """Store a file."""
    upload = parse_upload(request.headers.get("content-type", ""), request.body)
    rules = app.batch_limits
    if len(upload.file) > rules.file_bytes_max:
        msg = f"the file is larger than the {rules.file_bytes_max} bytes that one may have"
        raise TransportError(413, "file_too_large", msg)
    # The fields of a form are texts.
    fields = {
        name: int(value) if _DIGITS.fullmatch(value) else value
        for name, value in upload.fields.items()
    }
    form = parse_body(FileForm, json.dumps(fields).encode())
    request.marks.warning = without_effect(form.unknown)
    wanted = any(name.startswith("expires_after") for name in fields)
    kept_s = form.expires_after_seconds if wanted else rules.file_kept_s
    packed = pack(upload.file, filename=upload.filename)
    created = FileCreated(
        purpose=form.purpose,
        bytes=packed.bytes,
        content=packed.digest,
        expires_at=later(app.clock.now(), kept_s),
        owner=request.caller.owner,
    )
    file = app.file_records.keep(
        new_file_id(app.ids), created, correlation_id=request.id, payloads=packed.payloads
    )
    return file_object(file, app.payloads.get)


def list_files(app: App, request: Request) -> Listing[FileObject]:
    """List files, newest first by default."""
    after, purpose = _FILES_AFTER.read(request), _PURPOSE.read(request)
    page = app.file_records.page(
        limit=_FILES_LIMIT.read(request),
        purposes=(purpose,) if purpose else (),
        after=FileId(after) if after else None,
        oldest_first=_ORDER.read(request) is Order.ASC,
        owner=request.caller.sees,
    )
    data = [file_object(file, app.payloads.get) for file in page.rows]
    return listing_of(data, has_more=page.has_more)


def get_file(app: App, request: Request) -> FileObject:
    """Return a file."""
    return file_object(_find_file(app, request), app.payloads.get)


def delete_file(app: App, request: Request) -> Deleted:
    """Delete a file; batches that were created from it continue."""
    file = _find_file(app, request)
    app.file_records.delete(file.id, correlation_id=request.id)
    return {"id": file.id, "object": "file", "deleted": True}


def get_file_content(app: App, request: Request) -> StreamReply:
    """Return the content of a file."""
    file = _find_file(app, request)
    return StreamReply(pieces=blocks_of(_content(file, app), app.call), content_type=_OCTETS)


def find_file(file_id: str, app: App) -> StoredFile:
    """Return a file by its id; blocks.

    Raises:
        FileNotFound: There is none.
    """
    if not _FILE_NAME.fullmatch(file_id):
        raise FileNotFound(file_id)
    return app.file_records.load(FileId(file_id))


def _find_file(app: App, request: Request) -> StoredFile:
    return find_file(_FILE_ID.read(request), app)


def _content(file: StoredFile, app: App) -> Iterator[bytes]:
    facts = file.facts
    if facts.content is not None:
        return read_content(facts.content, app.payloads.get)
    batch = app.batch_records.load(BatchId(facts.batch or ""))
    results = BatchLines(app).results(batch)
    return (line for part, line in results if part == facts.part)


FILE_OPERATIONS: Final = (
    Operation(
        "POST /v1/files",
        create_file,
        body=FileUpload,
        body_media="multipart/form-data",
        takes_upload=True,
        example={"purpose": "batch", "file": "{}"},
    ),
    Operation(
        "GET /v1/files", list_files, parameters=(_FILES_LIMIT, _FILES_AFTER, _ORDER, _PURPOSE)
    ),
    Operation("GET /v1/files/{file_id}", get_file, parameters=(_FILE_ID,)),
    Operation("DELETE /v1/files/{file_id}", delete_file, parameters=(_FILE_ID,)),
    Operation(
        "GET /v1/files/{file_id}/content", get_file_content, parameters=(_FILE_ID,), media=_OCTETS
    ),
)


class BatchBody(BatchOptions):
    """The body of ``POST /v1/batches``: the requests in a file, to answer within a day."""

    input_file_id: Name
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: Literal["24h"]
    metadata: Pairs | None = None
    output_expires_after: KeptFor | None = None


class BatchFault(TypedDict):
    """An error in a line, or in the file as a whole."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchFaults(TypedDict):
    """The errors of a batch that failed."""

    object: Literal["list"]
    data: list[BatchFault]


class BatchRequestCounts(TypedDict):
    """Numbers of requests by state."""

    total: int
    completed: int
    failed: int


class BatchUsage(TypedDict):
    """Token counts of all lines."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(TypedDict):
    """An OpenAI batch; times are in Unix seconds.

    ``start_after`` is an addition that only a batch with a later start has.
    """

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating",
        "failed",
        "in_progress",
        "finalizing",
        "completed",
        "expired",
        "cancelling",
        "cancelled",
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchRequestCounts
    metadata: dict[str, str] | None
    usage: NotRequired[BatchUsage]
    start_after: NotRequired[int]


_OPENAI_STATUS: Final = {
    BatchState.VALIDATING: "validating",
    BatchState.IN_PROGRESS: "in_progress",
    BatchState.CANCELING: "cancelling",
    BatchState.FINALIZING: "finalizing",
    BatchState.FAILED: "failed",
}


def openai_batch_status(batch: Batch) -> str:
    """Return the status of a batch in OpenAI's words."""
    if batch.state is not BatchState.ENDED:
        cancelling = batch.state is BatchState.FINALIZING and batch.cancel_requested_at
        return "cancelling" if cancelling else _OPENAI_STATUS[batch.state]
    if batch.cancel_requested_at is not None:
        return "cancelled"
    return "expired" if batch.counts is not None and batch.counts.expired else "completed"


def _object(batch: Batch, app: App) -> BatchObject:
    facts, counts = batch.facts, batch_progress(batch, app)
    status = openai_batch_status(batch)
    ends = {
        f"{end}_at": _seconds(batch.ended_at) if status == end else None
        for end in ("completed", "failed", "expired", "cancelled")
    }
    faults = _faults(batch, app)
    whole = shown(
        BatchObject,
        facts,
        id=OPENAI_BATCHES.name(batch),
        object="batch",
        errors=None if faults is None else {"object": "list", "data": faults},
        input_file_id=facts.input_file or "",
        completion_window="24h",
        status=status,
        output_file_id=_file(batch, "output", app),
        error_file_id=_file(batch, "error", app),
        created_at=unix_seconds(batch.created_at),
        in_progress_at=_seconds(batch.started_at),
        expires_at=unix_seconds(facts.expires_at),
        finalizing_at=_seconds(batch.finalizing_at),
        cancelling_at=_seconds(batch.cancel_requested_at),
        request_counts={
            "total": 0 if status in {"validating", "failed"} else facts.lines,
            "completed": counts["succeeded"],
            "failed": counts["errored"],
        },
        **ends,
    )
    if facts.start_after is not None:
        whole["start_after"] = unix_seconds(facts.start_after)
    if batch.state is BatchState.ENDED:
        whole["usage"] = _usage(batch.usage)
    return whole


def _usage(usage: Usage) -> BatchUsage:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }


def _seconds(at: str | None) -> int | None:
    return unix_seconds(at) if at else None


_ENDED: Final = frozenset({"completed", "expired", "failed"})

_BATCH_ID: Final = path("batch_id", example=OPENAI_BATCHES.prefix + "0" * 32)
_LIMIT: Final = page_size(default=20, most=100)
_AFTER: Final = text("after", "only batches older than this one", pattern=OPENAI_BATCHES.id_pattern)


def create_batch(app: App, request: Request) -> BatchObject:
    """Accept the requests in a file; each becomes a job."""
    app.controls.require_admission()
    body = body_of(BatchBody, request)
    file = find_file(body.input_file_id, app)
    app.ownership.require(request.caller, file.id, FileNotFound(body.input_file_id))
    if file.facts.purpose != "batch" or file.facts.content is None:
        raise NotFound(f"{file.id} was not uploaded with the purpose batch")
    app.batch_records.require_room(
        batches_max=app.batch_limits.open_max, owner=request.caller.sharer
    )
    kept = body.output_expires_after
    batch = accept_batch(
        app,
        request,
        body,
        is_checked=False,
        protocol=OPENAI_ENDPOINTS[body.endpoint].protocol,
        endpoint=body.endpoint,
        content=file.facts.content,
        lines=count_lines(file.facts.content, app.payloads.get),
        input_file=file.id,
        metadata=body.metadata,
        output_kept_s=None if kept is None else kept.seconds,
    )
    app.wake_batches()
    return _object(batch, app)


def list_batches(app: App, request: Request) -> Listing[BatchObject]:
    """List batches, newest first."""
    limit, after = _LIMIT.read(request), _AFTER.read(request)
    page = OPENAI_BATCHES.page(app, request, limit, after=after)
    return listing_of([_object(batch, app) for batch in page.rows], has_more=page.has_more)


def get_batch(app: App, request: Request) -> BatchObject:
    """Return a batch."""
    return _object(_find(app, request), app)


def cancel_batch(app: App, request: Request) -> BatchObject:
    """Cancel a batch."""
    batch = _find(app, request)
    if openai_batch_status(batch) in _ENDED:
        raise BatchAlreadyEnded(OPENAI_BATCHES.name(batch), openai_batch_status(batch))
    batch = app.batch_records.cancel(batch.id)
    app.wake_batches()
    return _object(batch, app)


def _find(app: App, request: Request) -> Batch:
    return OPENAI_BATCHES.find(_BATCH_ID.read(request), app)


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
        body=BatchBody,
        example={
            "input_file_id": "file-" + "0" * 32,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
        responses={404: "The file does not exist", 429: BATCHES_FULL},
    ),
    Operation("GET /v1/batches", list_batches, parameters=(_LIMIT, _AFTER)),
    Operation("GET /v1/batches/{batch_id}", get_batch, parameters=(_BATCH_ID,)),
    Operation(
        "POST /v1/batches/{batch_id}/cancel",
        cancel_batch,
        parameters=(_BATCH_ID,),
        responses={409: "The batch has ended already"},
    ),
)
