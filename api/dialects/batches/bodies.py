"""Bodies and replies of batches and files, in both dialects."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.http.bodies import Items, KeptSeconds, Name, RequestBody, WebhookBody

#: Limits of the ``metadata`` of an OpenAI batch.
PAIRS_MAX = 16
KEY_CHARS_MAX = 64
VALUE_CHARS_MAX = 512

# --- Anthropic -----------------------------------------------------------------------------


class BatchRequest(RequestBody):
    """One request; an error in its ``params`` becomes its result."""

    custom_id: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    params: dict[str, Any]


class MessageBatchBody(RequestBody):
    """The body of ``POST /v1/messages/batches``: requests to answer within a day."""

    requests: Annotated[Items[BatchRequest], Field(min_length=1)]
    webhook: WebhookBody | None = None


class BatchCounts(TypedDict):
    """Numbers of requests by state."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(TypedDict):
    """An Anthropic batch.

    In ``request_counts`` all requests are ``processing`` until the batch has ended. ``progress``
    is an addition: the counts as they are now.
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


class MessageBatchList(TypedDict):
    """A page, newest first."""

    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedMessageBatch(TypedDict):
    """The reply to the deletion of a batch."""

    id: str
    type: Literal["message_batch_deleted"]


# --- OpenAI --------------------------------------------------------------------------------


class KeptFor(RequestBody):
    """Time until the files of the results expire."""

    anchor: Literal["created_at"]
    seconds: KeptSeconds


MetadataKey = Annotated[str, Field(max_length=KEY_CHARS_MAX)]
MetadataValue = Annotated[str, Field(max_length=VALUE_CHARS_MAX)]


class BatchBody(RequestBody):
    """The body of ``POST /v1/batches``: the requests in a file, to answer within a day."""

    input_file_id: Name
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: Literal["24h"]
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=PAIRS_MAX)] | None = None
    output_expires_after: KeptFor | None = None
    webhook: WebhookBody | None = None


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


class FileList(TypedDict):
    """A page of files."""

    object: Literal["list"]
    data: list[FileObject]
    has_more: bool
    first_id: str | None
    last_id: str | None


class DeletedFile(TypedDict):
    """The reply to the deletion of a file."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


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


class InputDetails(TypedDict):
    """Details of the input tokens."""

    cached_tokens: int


class OutputDetails(TypedDict):
    """Details of the output tokens."""

    reasoning_tokens: int


class BatchUsage(TypedDict):
    """Token counts of all lines."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class BatchObject(TypedDict):
    """An OpenAI batch; times are in Unix seconds."""

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


class BatchList(TypedDict):
    """A page, newest first."""

    object: Literal["list"]
    data: list[BatchObject]
    has_more: bool
    first_id: str | None
    last_id: str | None
