"""``/v1/files``: inputs and results of OpenAI's batches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final

from api.background.batches import BatchServices, Blocks, later, new_file_id
from api.errors import TransportError
from api.http.messages import Reply, Request, StreamReply
from api.http.multipart import parse_upload
from api.http.operation import Operation
from api.http.parameters import Order, choice, page_size, path, text
from api.http.replies import json_reply
from api.presenters.batches import file_object
from api.schemas.base import parse_body
from api.schemas.batches import (
    DeletedFile,
    FileForm,
    FileList,
    FileObject,
    FileUpload,
)
from domain.batch.files import FileId, StoredFile
from domain.batch.jsonl import pack, read_content
from domain.batch.state import BatchId
from domain.events.batch import FileCreated
from domain.not_found import FileNotFound

_ID: Final = re.compile(r"file-[0-9a-f]{32}")
_DIGITS: Final = re.compile(r"[0-9]{1,10}")
_OCTETS: Final = "application/octet-stream"

_FILE_ID: Final = path("file_id", example="file-" + "0" * 32)
_LIMIT: Final = page_size(default=10_000, most=10_000)
_AFTER: Final = text(
    "after", "only files behind this one, in the order of the list", pattern=f"^{_ID.pattern}$"
)
_ORDER: Final = choice("order", "order by creation", Order, default=Order.DESC)
_PURPOSE: Final = text("purpose", "only files with this purpose")


async def create_file(request: Request, batches: BatchServices) -> Reply:
    """Store an uploaded file."""
    return json_reply(await batches.call(_object, _keep, request, batches))


async def list_stored_files(request: Request, batches: BatchServices) -> Reply:
    """List files, newest first by default."""
    after, purpose = _AFTER.read(request), _PURPOSE.read(request)
    page = await batches.call(
        batches.files.page,
        limit=_LIMIT.read(request),
        purposes=(purpose,) if purpose else (),
        after=FileId(after) if after else None,
        oldest_first=_ORDER.read(request) is Order.ASC,
        owner=request.caller.sees,
    )
    data = await batches.call(
        lambda: [file_object(file, batches.payloads.get) for file in page.rows]
    )
    body: FileList = {
        "object": "list",
        "data": data,
        "has_more": page.has_more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }
    return json_reply(body)


async def get_file(request: Request, batches: BatchServices) -> Reply:
    """Return one file."""
    return json_reply(await batches.call(_object, _find, request, batches))


async def delete_stored_file(request: Request, batches: BatchServices) -> Reply:
    """Delete a file; batches that were created from it continue."""
    file = await batches.call(_find, request, batches)
    await batches.call(batches.files.delete, file.id, correlation_id=request.id)
    body: DeletedFile = {"id": file.id, "object": "file", "deleted": True}
    return json_reply(body)


async def file_content(request: Request, batches: BatchServices) -> StreamReply:
    """Return the content of a file."""
    file = await batches.call(_find, request, batches)
    pieces = await batches.call(_content, file, batches)
    return StreamReply(pieces=Blocks(pieces, batches.call), content_type=_OCTETS)


def find_file(file_id: str, batches: BatchServices) -> StoredFile:
    """Return a file by its id; blocks.

    Raises:
        FileNotFound: There is none.
    """
    if not _ID.fullmatch(file_id):
        raise FileNotFound(file_id)
    return batches.files.load(FileId(file_id))


def _keep(request: Request, batches: BatchServices) -> StoredFile:
    upload = parse_upload(request.headers.get("content-type", ""), request.body)
    rules = batches.rules
    if len(upload.file) > rules.file_bytes_max:
        msg = f"the file is larger than the {rules.file_bytes_max} bytes that one may have"
        raise TransportError(413, "file_too_large", msg)
    # The fields of a form are texts.
    fields = {name: _number_or_text(value) for name, value in upload.fields.items()}
    form = parse_body(FileForm, json.dumps(fields).encode())
    wanted = any(name.startswith("expires_after") for name in fields)
    kept_s = form.expires_after_seconds if wanted else rules.file_kept_s
    packed = pack(upload.file, filename=upload.filename)
    created = FileCreated(
        purpose=form.purpose,
        bytes=packed.bytes,
        content=packed.digest,
        expires_at=later(batches.clock.now(), kept_s),
        owner=request.caller.owner,
    )
    return batches.files.keep(
        new_file_id(batches.ids),
        created,
        correlation_id=request.id,
        payloads=packed.payloads,
    )


def _number_or_text(text_: str) -> int | str:
    return int(text_) if _DIGITS.fullmatch(text_) else text_


def _object(
    of: Callable[[Request, BatchServices], StoredFile], request: Request, batches: BatchServices
) -> FileObject:
    return file_object(of(request, batches), batches.payloads.get)


def _find(request: Request, batches: BatchServices) -> StoredFile:
    return find_file(_FILE_ID.read(request), batches)


def _content(file: StoredFile, batches: BatchServices) -> Iterator[bytes]:
    facts = file.facts
    if facts.content is not None:
        return read_content(facts.content, batches.payloads.get)
    batch = batches.records.load(BatchId(facts.batch or ""))
    results = batches.lines.results(batch)
    return (line for part, line in results if part == facts.part)


FILE_OPERATIONS: Final = (
    Operation(
        "POST /v1/files",
        create_file,
        id="createFile",
        summary="Store a file",
        body=FileUpload,
        body_media="multipart/form-data",
        takes_upload=True,
        example={"purpose": "batch", "file": "{}"},
        reply=FileObject,
    ),
    Operation(
        "GET /v1/files",
        list_stored_files,
        id="listFiles",
        summary="List files, newest first by default",
        parameters=(_LIMIT, _AFTER, _ORDER, _PURPOSE),
        reply=FileList,
    ),
    Operation(
        "GET /v1/files/{file_id}",
        get_file,
        id="getFile",
        summary="Return a file",
        parameters=(_FILE_ID,),
        reply=FileObject,
    ),
    Operation(
        "DELETE /v1/files/{file_id}",
        delete_stored_file,
        id="deleteFile",
        summary="Delete a file; batches that were created from it continue",
        parameters=(_FILE_ID,),
        reply=DeletedFile,
    ),
    Operation(
        "GET /v1/files/{file_id}/content",
        file_content,
        id="getFileContent",
        summary="Return the content of a file",
        parameters=(_FILE_ID,),
        media=_OCTETS,
    ),
)
