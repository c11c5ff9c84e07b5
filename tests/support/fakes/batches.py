"""Batches over a log in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from domain.batch.ports import BatchLine, BatchTally
from domain.batch.state import Batch, BatchId, job_of_line, line_of_job
from domain.chat.request import ChatRequest, Message
from domain.errors import InvalidRequest
from domain.events.batch import BatchEnded, BatchFailed, BatchSubmitted
from domain.job.state import Job
from domain.values import JobId, JobStatus, Owner, SamplingWish, StreamName, Usage
from tests.support.fakes.event_log import InMemoryEventLog

_ALL = 10**9


class InMemoryBatchViews:
    """``BatchViews`` over an ``InMemoryEventLog``."""

    def __init__(self, log: InMemoryEventLog) -> None:
        self._log = log

    def tally(self, batch_id: BatchId) -> BatchTally:
        rows = self._rows(batch_id)
        return BatchTally(
            by_status=Counter(row.status for row in rows),
            last_line=max((line_of_job(row.id) for row in rows), default=-1),
        )

    def waiting(self, batch_id: BatchId) -> Mapping[str | None, int]:
        rows = self._rows(batch_id)
        return Counter(row.submitted.bound_model for row in rows if row.status is JobStatus.QUEUED)

    def usage(self, batch_id: BatchId) -> Usage:
        rows = self._rows(batch_id)
        return sum((row.usage for row in rows), start=Usage())

    def open_jobs(self, batch_id: BatchId) -> tuple[JobId, ...]:
        return tuple(
            sorted(
                row.id
                for row in self._rows(batch_id)
                if not row.status.is_terminal and not row.cancel_requested
            )
        )

    def line_jobs(self, batch_id: BatchId, *, first: int, limit: int) -> Mapping[int, Job]:
        wanted = {job_of_line(batch_id, line): line for line in range(first, first + limit)}
        return {wanted[row.id]: row for row in self._rows(batch_id) if row.id in wanted}

    def streams(
        self,
        type_name: str,
        *,
        limit: int,
        after: str | None = None,
        oldest_first: bool = False,
        owner: Owner | None = None,
    ) -> tuple[StreamName, ...]:
        events = self._log.read_all(limit=_ALL, types=(type_name,))
        found = [one.stream for one in events if owner in {None, one.data.get("owner")}]
        if not oldest_first:
            found.reverse()
        if after is not None:
            name = StreamName(after)
            found = found[found.index(name) + 1 :] if name in found else []
        return tuple(found[:limit])

    def unfinished(self, *, owner: Owner | None = None) -> tuple[BatchId, ...]:
        ends = (BatchEnded.__name__, BatchFailed.__name__)
        over = {event.stream for event in self._log.read_all(limit=_ALL, types=ends)}
        begun = self.streams(BatchSubmitted.__name__, limit=_ALL, oldest_first=True, owner=owner)
        return tuple(BatchId(stream) for stream in begun if stream not in over)

    def _rows(self, batch_id: BatchId) -> list[Job]:
        return [row for row in self._log.views.rows.values() if row.correlation_id == batch_id]


class PlainLines:
    """``LineProtocol`` whose lines are prompts; ``bad`` is invalid, ``fault`` fails all lines.

    Lines that begin with ``night`` are bound to the model of that name.
    """

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self.sizes = sizes or {}

    def read(self, batch: Batch, raw: bytes) -> BatchLine:
        del batch
        if raw == b"bad":
            refusal = InvalidRequest("it is bad", field="messages")
            return BatchLine(model="", request=refusal)
        request = ChatRequest(
            model="m",
            messages=(Message(role="user", content=raw.decode()),),
            max_tokens=5,
            sampling=SamplingWish(seed=1),
        )
        bound = "night" if raw.startswith(b"night") else None
        return BatchLine(model="m", request=request, bound_model=bound)

    def faults(
        self, batch: Batch, lines: Iterable[tuple[int, bytes]]
    ) -> Sequence[Mapping[str, object]]:
        del batch
        return [{"line": number} for number, raw in lines if raw == b"fault"]

    def measure(self, batch: Batch) -> Mapping[str, int]:
        del batch
        return self.sizes
