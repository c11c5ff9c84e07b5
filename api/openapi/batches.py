"""What the routes of batches and files take and give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from api.http.messages import Dialect
from api.openapi.operations import Operation
from api.openapi.parameters import Parameter, limit, path, query
from api.schemas.batches import (
    BatchBody,
    BatchList,
    BatchObject,
    DeletedFile,
    DeletedMessageBatch,
    FileList,
    FileObject,
    FileUpload,
    MessageBatch,
    MessageBatchBody,
    MessageBatchList,
)

_ANTHROPIC: Final = (Dialect.ANTHROPIC,)
_OPENAI: Final = (Dialect.OPENAI,)
_PARAMS: Final = {
    "model": "semantic-demo",
    "max_tokens": 32,
    "messages": [{"role": "user", "content": "Say hello."}],
}
_FULL: Final = "Too many batches are open; Retry-After says when to try again"
_FORM: Final = "multipart/form-data"


def _path(name: str, prefix: str) -> Parameter:
    return path(name, {"type": "string", "minLength": 1}, prefix + "0" * 32)


def _id(prefix: str) -> Mapping[str, Any]:
    return {"type": "string", "pattern": f"^{prefix}[0-9a-f]{{32}}$"}


_MESSAGE_BATCH: Final = (_path("batch_id", "msgbatch_"),)
_BATCH: Final = (_path("batch_id", "batch_"),)
_FILE: Final = (_path("file_id", "file-"),)

#: By method and pattern.
BATCH_OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("POST", "/v1/messages/batches"): Operation(
        id="createMessageBatch",
        summary="Accept many Messages requests at once; each becomes a job",
        dialects=_ANTHROPIC,
        body=MessageBatchBody,
        example={"requests": [{"custom_id": "first", "params": _PARAMS}]},
        reply=MessageBatch,
        extra={429: _FULL},
    ),
    ("GET", "/v1/messages/batches"): Operation(
        id="listMessageBatches",
        summary="List Message Batches, newest first",
        dialects=_ANTHROPIC,
        reply=MessageBatchList,
        parameters=(
            limit(20, 1000),
            query("after_id", _id("msgbatch_"), "only older ones than this"),
            query("before_id", _id("msgbatch_"), "only newer ones than this"),
        ),
    ),
    ("GET", "/v1/messages/batches/{batch_id}"): Operation(
        id="getMessageBatch",
        summary="Show a Message Batch",
        dialects=_ANTHROPIC,
        reply=MessageBatch,
        missing=True,
        parameters=_MESSAGE_BATCH,
    ),
    ("DELETE", "/v1/messages/batches/{batch_id}"): Operation(
        id="deleteMessageBatch",
        summary="Show a Message Batch that has ended no more",
        dialects=_ANTHROPIC,
        reply=DeletedMessageBatch,
        missing=True,
        parameters=_MESSAGE_BATCH,
        extra={409: "The batch has not ended"},
    ),
    ("POST", "/v1/messages/batches/{batch_id}/cancel"): Operation(
        id="cancelMessageBatch",
        summary="Ask for the early end of a Message Batch; asking again changes nothing",
        dialects=_ANTHROPIC,
        reply=MessageBatch,
        missing=True,
        parameters=_MESSAGE_BATCH,
    ),
    ("GET", "/v1/messages/batches/{batch_id}/results"): Operation(
        id="getMessageBatchResults",
        summary="Read the results of a Message Batch that has ended, one JSON object per line",
        dialects=_ANTHROPIC,
        media="application/x-jsonl",
        missing=True,
        parameters=_MESSAGE_BATCH,
        extra={409: "The batch has not ended"},
    ),
    ("POST", "/v1/files"): Operation(
        id="createFile",
        summary="Keep a file",
        dialects=_OPENAI,
        body=FileUpload,
        body_media=_FORM,
        example={"purpose": "batch", "file": "{}"},
        reply=FileObject,
    ),
    ("GET", "/v1/files"): Operation(
        id="listFiles",
        summary="List files, newest first unless asked otherwise",
        dialects=_OPENAI,
        reply=FileList,
        parameters=(
            limit(10_000, 10_000),
            query("after", _id("file-"), "the file before the first one"),
            query(
                "order",
                {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
                "by creation",
            ),
            query("purpose", {"type": "string"}, "only files of this purpose"),
        ),
    ),
    ("GET", "/v1/files/{file_id}"): Operation(
        id="getFile",
        summary="Show a file",
        dialects=_OPENAI,
        reply=FileObject,
        missing=True,
        parameters=_FILE,
    ),
    ("DELETE", "/v1/files/{file_id}"): Operation(
        id="deleteFile",
        summary="Show a file no more; batches made of it go on",
        dialects=_OPENAI,
        reply=DeletedFile,
        missing=True,
        parameters=_FILE,
    ),
    ("GET", "/v1/files/{file_id}/content"): Operation(
        id="getFileContent",
        summary="Read what is in a file",
        dialects=_OPENAI,
        media="application/octet-stream",
        missing=True,
        parameters=_FILE,
    ),
    ("POST", "/v1/batches"): Operation(
        id="createBatch",
        summary="Accept the lines of a file; each becomes a job",
        dialects=_OPENAI,
        body=BatchBody,
        example={
            "input_file_id": "file-" + "0" * 32,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
        },
        reply=BatchObject,
        extra={429: _FULL},
    ),
    ("GET", "/v1/batches"): Operation(
        id="listBatches",
        summary="List batches, newest first",
        dialects=_OPENAI,
        reply=BatchList,
        parameters=(
            limit(20, 100),
            query("after", _id("batch_"), "only older ones than this"),
        ),
    ),
    ("GET", "/v1/batches/{batch_id}"): Operation(
        id="getBatch",
        summary="Show a batch",
        dialects=_OPENAI,
        reply=BatchObject,
        missing=True,
        parameters=_BATCH,
    ),
    ("POST", "/v1/batches/{batch_id}/cancel"): Operation(
        id="cancelBatch",
        summary="Ask for the early end of a batch",
        dialects=_OPENAI,
        reply=BatchObject,
        missing=True,
        parameters=_BATCH,
        extra={409: "The batch has ended already"},
    ),
}
