"""``/v1/files``: inputs and results of OpenAI's batches."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Annotated, Final, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.batches.lines import BatchLines
from api.dialects.batches.objects import blocks_of, later, new_file_id
from api.dialects.encoding import Deleted, Listing, deleted_reply, listing_of, shown
from api.errors import TransportError
from api.generation import unix_seconds
from api.http.bodies import KeptSeconds, RequestBody, parse_body
from api.http.messages import Reply, Request, StreamReply
from api.http.multipart import parse_upload
from api.http.operation import Operation, Order, choice, page_size, path, text
from domain.batch.jsonl import pack, read_content, read_filename
from domain.batch.ports import FileId, StoredFile
from domain.batch.state import BatchId
from domain.errors import TEXT_LOST, FileNotFound
from domain.events.batch import FileCreated
from domain.values import Digest


class KeptFor(RequestBody):
    """Time until the files of the results expire."""

    anchor: Literal["created_at"]
    seconds: KeptSeconds


class FileForm(RequestBody):
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
    after, purpose = _AFTER.read(request), _PURPOSE.read(request)
    page = app.file_records.page(
        limit=_LIMIT.read(request),
        purposes=(purpose,) if purpose else (),
        after=FileId(after) if after else None,
        oldest_first=_ORDER.read(request) is Order.ASC,
        owner=request.caller.sees,
    )
    data = [file_object(file, app.payloads.get) for file in page.rows]
    return listing_of(data, has_more=page.has_more)


def get_file(app: App, request: Request) -> FileObject:
    """Return a file."""
    return file_object(_find(app, request), app.payloads.get)


def delete_file(app: App, request: Request) -> Reply:
    """Delete a file; batches that were created from it continue."""
    file = _find(app, request)
    app.file_records.delete(file.id, correlation_id=request.id)
    return deleted_reply(file.id, "file")


def get_file_content(app: App, request: Request) -> StreamReply:
    """Return the content of a file."""
    file = _find(app, request)
    return StreamReply(pieces=blocks_of(_content(file, app), app.call), content_type=_OCTETS)


def find_file(file_id: str, app: App) -> StoredFile:
    """Return a file by its id; blocks.

    Raises:
        FileNotFound: There is none.
    """
    if not _ID.fullmatch(file_id):
        raise FileNotFound(file_id)
    return app.file_records.load(FileId(file_id))


def _find(app: App, request: Request) -> StoredFile:
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
        reply=FileObject,
    ),
    Operation(
        "GET /v1/files",
        list_files,
        parameters=(_LIMIT, _AFTER, _ORDER, _PURPOSE),
        reply=Listing[FileObject],
    ),
    Operation("GET /v1/files/{file_id}", get_file, parameters=(_FILE_ID,), reply=FileObject),
    Operation("DELETE /v1/files/{file_id}", delete_file, parameters=(_FILE_ID,), reply=Deleted),
    Operation(
        "GET /v1/files/{file_id}/content", get_file_content, parameters=(_FILE_ID,), media=_OCTETS
    ),
)
