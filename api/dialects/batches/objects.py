"""Batches and files as clients read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from api.answer import unix_seconds
from api.dialects.batches.bodies import (
    BatchCounts,
    BatchFault,
    BatchObject,
    BatchUsage,
    FileObject,
    MessageBatch,
)
from api.dialects.batches.lines import MESSAGES_PATH
from api.dialects.batches.names import wire_id
from domain.batch.jsonl import read_filename
from domain.batch.ports import BatchTally, StoredFile
from domain.batch.state import Batch, BatchState
from domain.errors import TEXT_LOST
from domain.events.batch import FileCreated
from domain.values import Digest, JobStatus

MESSAGE_BATCH_PREFIX: Final = "msgbatch_"
OPENAI_BATCH_PREFIX: Final = "batch_"

_MESSAGE_BATCH_STATUS: Final = {
    BatchState.CANCELING: "canceling",
    BatchState.ENDED: "ended",
    BatchState.FAILED: "ended",
}
_OPENAI_STATUS: Final = {
    BatchState.VALIDATING: "validating",
    BatchState.IN_PROGRESS: "in_progress",
    BatchState.CANCELING: "cancelling",
    BatchState.FINALIZING: "finalizing",
    BatchState.FAILED: "failed",
}
#: The name of a file that was uploaded without one.
_UNNAMED: Final = "file"


def batch_counts(batch: Batch, tally: BatchTally | None) -> BatchCounts:
    """Return the numbers of requests by state.

    Args:
        tally: Its jobs by status; only for a batch that has no final counts.
    """
    if batch.counts is not None:
        counts = batch.counts
        return {
            "processing": batch.facts.lines - counts.lines,
            "succeeded": counts.succeeded,
            "errored": counts.errored,
            "canceled": counts.canceled,
            "expired": counts.expired,
        }
    by_status = {} if tally is None else tally.by_status
    ended = {status: by_status.get(status, 0) for status in JobStatus if status.is_terminal}
    return {
        "processing": batch.facts.lines - sum(ended.values()),
        "succeeded": ended[JobStatus.COMPLETED],
        "errored": ended[JobStatus.FAILED],
        "canceled": ended[JobStatus.CANCELLED],
        "expired": ended[JobStatus.EXPIRED],
    }


def message_batch_status(batch: Batch) -> str:
    """Return the status of a batch in Anthropic's words."""
    return _MESSAGE_BATCH_STATUS.get(batch.state, "in_progress")


def message_batch_object(
    batch: Batch, counts: BatchCounts, *, archived_at: str | None, origin: str
) -> MessageBatch:
    """Return a batch in Anthropic's format.

    Args:
        counts: Its requests by state as they are now.
        archived_at: When its results were archived, if they were.
        origin: Origin of the URL of the results.
    """
    name = wire_id(batch.id, MESSAGE_BATCH_PREFIX)
    has_results = batch.state.is_terminal and archived_at is None
    none_done: BatchCounts = {
        "processing": batch.facts.lines,
        "succeeded": 0,
        "errored": 0,
        "canceled": 0,
        "expired": 0,
    }
    return {
        "id": name,
        "type": "message_batch",
        "processing_status": message_batch_status(batch),  # type: ignore[typeddict-item]  # one of three
        "request_counts": counts if batch.state.is_terminal else none_done,
        "progress": counts,
        "created_at": batch.created_at,
        "expires_at": batch.facts.expires_at,
        "ended_at": batch.ended_at,
        "cancel_initiated_at": batch.cancel_requested_at,
        "archived_at": archived_at,
        "results_url": f"{origin}{MESSAGES_PATH}/batches/{name}/results" if has_results else None,
    }


def openai_batch_status(batch: Batch) -> str:
    """Return the status of a batch in OpenAI's words."""
    if batch.state is not BatchState.ENDED:
        cancelling = batch.state is BatchState.FINALIZING and batch.cancel_requested_at
        return "cancelling" if cancelling else _OPENAI_STATUS[batch.state]
    if batch.cancel_requested_at is not None:
        return "cancelled"
    return "expired" if batch.counts is not None and batch.counts.expired else "completed"


def openai_batch_object(
    batch: Batch,
    counts: BatchCounts,
    *,
    faults: Sequence[BatchFault] | None,
    output_file: str | None,
    error_file: str | None,
) -> BatchObject:
    """Return a batch in OpenAI's format.

    Args:
        counts: Its requests by state as they are now.
        faults: The errors of its input file, if it failed.
        output_file: Id of the file of the answers, if it has one.
        error_file: Id of the file of the failures, if it has one.
    """
    facts = batch.facts
    status = openai_batch_status(batch)
    ended_at = _seconds(batch.ended_at)
    shown: BatchObject = {
        "id": wire_id(batch.id, OPENAI_BATCH_PREFIX),
        "object": "batch",
        "endpoint": facts.endpoint,
        "errors": None if faults is None else {"object": "list", "data": list(faults)},
        "input_file_id": facts.input_file or "",
        "completion_window": "24h",
        "status": status,  # type: ignore[typeddict-item]  # one of them
        "output_file_id": output_file,
        "error_file_id": error_file,
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


def file_object(file: StoredFile, get: Callable[[Digest], bytes]) -> FileObject:
    """Return a file; ``get`` returns a payload."""
    facts = file.facts
    shown: FileObject = {
        "id": file.id,
        "object": "file",
        "bytes": facts.bytes,
        "created_at": unix_seconds(file.created_at),
        "filename": _filename(facts, get),
        "purpose": facts.purpose,
        "status": "processed",
    }
    if facts.expires_at is not None:
        shown["expires_at"] = unix_seconds(facts.expires_at)
    return shown


def _filename(facts: FileCreated, get: Callable[[Digest], bytes]) -> str:
    if facts.content is None:
        return f"{facts.batch}_{facts.part}.jsonl"
    try:
        return read_filename(facts.content, get) or _UNNAMED
    except TEXT_LOST:
        return _UNNAMED


def _usage(batch: Batch) -> BatchUsage:
    usage = batch.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _seconds(at: str | None) -> int | None:
    return unix_seconds(at) if at else None
