"""What both kinds of batches share: ids, counts, messages, and streams of lines."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, Self

from typing_extensions import TypedDict  # pydantic reads only this one below Python 3.12

from api.app import App
from api.dialects.batches.lines import ANTHROPIC
from api.http.messages import Request
from domain.batch.batches import BatchRecords
from domain.batch.ports import FILE_PREFIX, BatchTally, FileId
from domain.batch.state import BATCH_PREFIX, Batch, BatchId
from domain.errors import (
    BatchNotFound,
)
from domain.job.submit import text_bytes
from domain.ports import IdSource
from domain.values import Digest, JobStatus, digest_of, rfc3339
from domain.webhook.send import batch_event

#: Bytes of an answer of many lines that go out together.
BLOCK_BYTES: Final = 64 * 1024
_HEX: Final = re.compile(r"[0-9a-f]{32}")
_JOB_PREFIX: Final = "job-"

BlockCall = Callable[[Callable[[], bytes]], Awaitable[bytes]]


def new_batch_id(ids: IdSource) -> BatchId:
    """Return a fresh id that sorts by creation."""
    return BatchId(BATCH_PREFIX + ids.job_id().removeprefix(_JOB_PREFIX))


def new_file_id(ids: IdSource) -> FileId:
    """Return a fresh id that sorts by creation."""
    return FileId(FILE_PREFIX + ids.job_id().removeprefix(_JOB_PREFIX))


def wire_id(batch_id: BatchId, prefix: str) -> str:
    """Return the id of a batch as a protocol spells it."""
    return prefix + batch_id.removeprefix(BATCH_PREFIX)


def batch_id_of(name: str, prefix: str) -> BatchId:
    """Return the batch that a protocol's id means.

    Raises:
        BatchNotFound: It is no such id.
    """
    digits = name.removeprefix(prefix)
    if not name.startswith(prefix) or not _HEX.fullmatch(digits):
        raise BatchNotFound(name)
    return BatchId(BATCH_PREFIX + digits)


def find_batch(name: str, prefix: str, protocols: Collection[str], records: BatchRecords) -> Batch:
    """Return a batch of one of the protocols by its id there; blocks.

    Raises:
        BatchNotFound: There is none.
    """
    try:
        batch = records.load(batch_id_of(name, prefix))
    except BatchNotFound as error:
        raise BatchNotFound(name) from error
    if batch.facts.protocol not in protocols:
        raise BatchNotFound(name)
    return batch


def later(moment: datetime, seconds: float) -> str:
    """Return the instant some seconds after a moment, as the log writes them."""
    return rfc3339(moment + timedelta(seconds=seconds))


def is_reached(at: str, seconds: float, now: datetime) -> bool:
    """Whether ``seconds`` have passed since the instant ``at``."""
    return now >= datetime.fromisoformat(at) + timedelta(seconds=seconds)


class Blocks:
    """Lines as the pieces of a ``StreamReply``, made on a thread a block at a time.

    Args:
        pieces: The lines; at no time is more of them in memory than a block.
        call: Runs what blocks.
    """

    def __init__(self, pieces: Iterator[bytes], call: BlockCall) -> None:
        self._pieces = pieces
        self._call = call

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        block = await self._call(self._next_block)
        if not block:
            raise StopAsyncIteration
        return block

    def _next_block(self) -> bytes:
        block = bytearray()
        for piece in self._pieces:
            block += piece
            if len(block) >= BLOCK_BYTES:
                break
        return bytes(block)


class BatchCounts(TypedDict):
    """Numbers of requests by state."""

    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


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


def batch_message(batch: Batch) -> dict[str, Any]:
    """Return the body of a message about a batch; both dialects share it."""
    prefix = "msgbatch_" if batch.facts.protocol == ANTHROPIC else "batch_"
    name = wire_id(batch.id, prefix)
    path = "/v1/messages/batches" if batch.facts.protocol == ANTHROPIC else "/v1/batches"
    counts = batch.counts
    return {
        "id": name,
        "object": "batch",
        "status": batch_event(batch).removeprefix("batch."),
        "endpoint": batch.facts.endpoint,
        "lines": batch.facts.lines,
        "counts": {
            "succeeded": counts.succeeded if counts else 0,
            "errored": counts.errored if counts else 0,
            "canceled": counts.canceled if counts else 0,
            "expired": counts.expired if counts else 0,
        },
        "created_at": batch.created_at,
        "ended_at": batch.ended_at,
        "links": {"self": f"{path}/{name}"},
    }


#: Characters of a User-Agent that are stored.
CLIENT_CHARS_MAX: Final = 256
#: For the document: the failure with status 429 of both operations that create batches.
BATCHES_FULL: Final = "Too many batches are open; Retry-After has the seconds to wait"


def client_payload(request: Request) -> dict[Digest, bytes]:
    """Return the text that names the client by its digest; empty if it sends none."""
    name = text_bytes(request.headers.get("user-agent", "")[:CLIENT_CHARS_MAX])
    return {digest_of(name): name} if name else {}


def batch_progress(batch: Batch, app: App) -> BatchCounts:
    """Return the numbers of requests by state as they are now; blocks."""
    return batch_counts(batch, None if batch.counts else app.batch_records.views.tally(batch.id))
