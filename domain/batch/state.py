"""A batch as a fold over its events, and the decisions that may follow.

    validating ──BatchStarted──> in_progress ──BatchFinalizing──> finalizing ──BatchEnded──> ended
        │  └─────BatchFailed────> failed │  └─────────────────BatchEnded────────────────────>  ^
        └──BatchCancelRequested──> canceling ──BatchFinalizing, BatchEnded─────────────────────┘

Each line becomes a job whose id is derived from the batch and the line number, so a line that is
submitted again after a crash is the same job. The jobs record the results of the lines; the batch
records only the totals.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NewType

from domain.errors import BatchNotEnded
from domain.events.batch import (
    BatchCancelRequested,
    BatchDeleted,
    BatchEnded,
    BatchEvent,
    BatchFailed,
    BatchFinalizing,
    BatchStarted,
    BatchSubmitted,
)
from domain.log.codec import decode_recorded
from domain.log.record import RecordedEvent
from domain.values import Digest, JobId, Usage

#: ``batch-`` and 32 hex digits; the wire protocols show their own prefixes.
BatchId = NewType("BatchId", str)

BATCH_PREFIX: Final = "batch-"
_TIME_DIGITS: Final = 12
_LINE_DIGITS: Final = 8


class BatchState(StrEnum):
    """The state of a batch; ``ended`` and ``failed`` are terminal."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    CANCELING = "canceling"
    FINALIZING = "finalizing"
    ENDED = "ended"
    FAILED = "failed"

    @property
    def is_terminal(self) -> bool:
        """Whether the state can no longer change."""
        return self in {BatchState.ENDED, BatchState.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The state of one batch, folded from its events; instants are RFC 3339.

    Attributes:
        version: Number of events folded.
        submitted: The acceptance; ``None`` only before the first event.
        created_at: When it was accepted.
        started_at: When its lines began to become jobs.
        finalizing_at: When the last line had ended.
        ended_at: When it ended, or failed.
        counts: The results of the lines, once it has ended.
        errors: Digest of the errors that were found in the lines.
    """

    id: BatchId
    version: int = 0
    state: BatchState = BatchState.VALIDATING
    submitted: BatchSubmitted | None = None
    created_at: str = ""
    started_at: str | None = None
    cancel_requested_at: str | None = None
    finalizing_at: str | None = None
    ended_at: str | None = None
    counts: BatchEnded | None = None
    errors: Digest | None = None
    deleted: bool = False

    @property
    def facts(self) -> BatchSubmitted:
        """The acceptance of a batch that exists."""
        assert self.submitted is not None
        return self.submitted

    @property
    def usage(self) -> Usage:
        """Tokens of all lines, once it has ended."""
        return Usage() if self.counts is None else self.counts.usage


#: In which states what was proposed may happen.
_BEFORE: Final[Mapping[type[BatchEvent], frozenset[BatchState]]] = {
    BatchStarted: frozenset({BatchState.VALIDATING}),
    BatchFailed: frozenset({BatchState.VALIDATING}),
    BatchCancelRequested: frozenset({BatchState.VALIDATING, BatchState.IN_PROGRESS}),
    BatchFinalizing: frozenset({BatchState.IN_PROGRESS, BatchState.CANCELING}),
    BatchEnded: frozenset(state for state in BatchState if not state.is_terminal),
}


def evolve(batch: Batch, recorded: RecordedEvent) -> Batch:
    """Return the state after the next event of its stream."""
    event = decode_recorded(recorded)
    assert isinstance(event, BatchEvent)
    return replace(_after(batch, event, recorded.recorded_at), version=recorded.version)


def _after(batch: Batch, event: BatchEvent, at: str) -> Batch:
    match event:
        case BatchSubmitted():
            batch = replace(batch, submitted=event, created_at=at)
        case BatchStarted():
            batch = replace(batch, state=BatchState.IN_PROGRESS, started_at=at)
        case BatchFailed(errors=errors):
            batch = replace(batch, state=BatchState.FAILED, errors=errors, ended_at=at)
        case BatchCancelRequested():
            batch = replace(batch, state=BatchState.CANCELING, cancel_requested_at=at)
        case BatchFinalizing():
            batch = replace(batch, state=BatchState.FINALIZING, finalizing_at=at)
        case BatchEnded():
            batch = replace(batch, state=BatchState.ENDED, ended_at=at, counts=event)
        case _:
            assert isinstance(event, BatchDeleted)
            batch = replace(batch, deleted=True)
    return batch


def decide(batch: Batch, proposal: BatchEvent) -> tuple[BatchEvent, ...]:
    """Return what is recorded of a proposed event: it, or nothing where the state forbids it.

    Raises:
        BatchNotEnded: ``BatchDeleted`` for an open batch.
    """
    if isinstance(proposal, BatchDeleted):
        if not batch.state.is_terminal:
            raise BatchNotEnded(batch.id, batch.state)
        return () if batch.deleted else (proposal,)
    if isinstance(proposal, BatchEnded):
        assert proposal.lines == batch.facts.lines, "a batch ends with a result for every line"
    return (proposal,) if batch.state in _BEFORE[type(proposal)] else ()


def job_of_line(batch_id: BatchId, line: int) -> JobId:
    """Return the id of the job of a line, numbered from 0.

    It consists of the instant of the batch, 48 bits of its digest and the number, so ids sort by
    batch and by line.
    """
    stamp = batch_id.removeprefix(BATCH_PREFIX)[:_TIME_DIGITS]
    mark = hashlib.sha256(batch_id.encode()).hexdigest()[:_TIME_DIGITS]
    return JobId(f"job-{stamp}{mark}{line:0{_LINE_DIGITS}x}")


def line_of_job(job_id: JobId) -> int:
    """Return the number of the line that a job of a batch came from."""
    return int(job_id[-_LINE_DIGITS:], 16)
