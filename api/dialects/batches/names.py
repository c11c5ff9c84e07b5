"""What the routes of batches and files share: ports, limits, ids, and streams of lines."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self

from domain.batch.ports import FILE_PREFIX, FileId
from domain.batch.state import BATCH_PREFIX, Batch, BatchId
from domain.errors import BatchNotFound
from domain.ports import IdSource
from domain.usecases.batches.batches import BatchRecords
from domain.values import rfc3339

#: Bytes of an answer of many lines that go out together.
BLOCK_BYTES: Final = 64 * 1024
_HEX: Final = re.compile(r"[0-9a-f]{32}")
_JOB_PREFIX: Final = "job-"

BlockCall = Callable[[Callable[[], bytes]], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits of batches and files.

    Attributes:
        open_max: Most batches that may be open at once.
        lines_max: Most requests of an Anthropic batch.
        file_lines_max: Most lines of an OpenAI batch.
        file_bytes_max: Most bytes of one file.
        window_s: How long a batch may take, in seconds.
        results_kept_s: How long the results of an Anthropic batch can be read after its creation.
        file_kept_s: How long a file is kept if its owner sets no time.
    """

    open_max: int = 100
    lines_max: int = 100_000
    file_lines_max: int = 50_000
    file_bytes_max: int = 200_000_000
    window_s: int = 24 * 3600
    results_kept_s: int = 29 * 24 * 3600
    file_kept_s: int = 30 * 24 * 3600


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
