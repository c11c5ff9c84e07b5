"""The owners of streams, and batches: ``domain.log.ports.Owners`` and ``BatchViews``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    bindparam,
    exists,
    func,
    select,
)

from domain.batch.ports import BatchTally
from domain.batch.state import BatchId, job_of_line, line_of_job
from domain.events.batch import BatchEnded, BatchFailed, BatchSubmitted, FileCreated
from domain.events.schedule import ScheduleAdded
from domain.job.state import Job
from domain.log.record import AGENT_STREAM, Ownership, RecordedEvent
from domain.values import JobId, JobStatus, Owner, StreamName, Usage
from ops.log.database import SqlViews
from ops.log.hot_statements import HotStatement
from ops.log.projections.jobs import job_of
from ops.log.row_codec import storable
from ops.log.tables import (
    AGENTS,
    EVENTS,
    JOBS,
    OWNED_STREAMS,
)

#: Types of the first events of streams whose owner has no other row.
_TYPES: Final = frozenset({FileCreated.__name__, BatchSubmitted.__name__, ScheduleAdded.__name__})


class OwnerFold:
    """The owners that some events name, written at the end."""

    def __init__(self, connection: Connection, insertion: HotStatement) -> None:
        self._connection = connection
        self._insertion = insertion
        self._owners: dict[str, str] = {}

    def fold(self, events: Iterable[RecordedEvent]) -> None:
        """Take events; streams without an owner get no row."""
        for event in events:
            if event.type in _TYPES and event.data.get("owner") is not None:
                self._owners[event.stream] = event.data["owner"]

    def write(self) -> None:
        """Write the rows."""
        rows = [{"stream": stream, "owner": owner} for stream, owner in self._owners.items()]
        if rows:
            self._insertion.run_many(self._connection, rows)


_JOB = HotStatement(select(JOBS.c.owner).where(JOBS.c.id == bindparam("name")))
_AGENT = HotStatement(select(AGENTS.c.owner).where(AGENTS.c.id == bindparam("name")))
_STREAM = HotStatement(
    select(OWNED_STREAMS.c.owner).where(OWNED_STREAMS.c.stream == bindparam("name"))
)
_JOB_PREFIX = "job-"


class SqlOwners(SqlViews):
    """Looks up owners."""

    def ownership_of(self, stream: StreamName) -> Ownership | None:
        """See ``Owners.ownership_of``."""
        statement, name = _STREAM, str(stream)
        if stream.startswith(_JOB_PREFIX):
            statement = _JOB
        elif stream.startswith(AGENT_STREAM):
            statement, name = _AGENT, stream.removeprefix(AGENT_STREAM)
        found = self._found(statement, name=storable(name))
        return Ownership(owner=found[0][0] and Owner(found[0][0])) if found else None


#: Lines that are read at a time to sum their usage.
_LINES_AT_ONCE = 1000
_OPEN = [status.value for status in JobStatus if not status.is_terminal]
_RECORDS = select(JOBS.c.record)
_TALLY = select(JOBS.c.status, func.count(), func.max(JOBS.c.id)).group_by(JOBS.c.status)
_WAITING = select(JOBS.c.bound_model, func.count()).group_by(JOBS.c.bound_model)


class SqlBatchViews(SqlViews):
    """Queries batches, files and the jobs of batches."""

    def tally(self, batch_id: BatchId) -> BatchTally:
        """See ``BatchViews.tally``."""
        found = self._all(_TALLY.where(JOBS.c.correlation_id == batch_id))
        return BatchTally(
            by_status={JobStatus(status): int(jobs) for status, jobs, _ in found},
            last_line=max((line_of_job(JobId(last)) for _, _, last in found), default=-1),
        )

    def waiting(self, batch_id: BatchId) -> Mapping[str | None, int]:
        """See ``BatchViews.waiting``."""
        query = _WAITING.where(
            JOBS.c.correlation_id == batch_id, JOBS.c.status == JobStatus.QUEUED.value
        )
        return {model: int(jobs) for model, jobs in self._all(query)}

    def usage(self, batch_id: BatchId) -> Usage:
        """See ``BatchViews.usage``."""
        lines = range(0, self.tally(batch_id).last_line + 1, _LINES_AT_ONCE)
        pages = (self.line_jobs(batch_id, first=first, limit=_LINES_AT_ONCE) for first in lines)
        return sum((job.usage for page in pages for job in page.values()), Usage())

    def open_jobs(self, batch_id: BatchId) -> tuple[JobId, ...]:
        """See ``BatchViews.open_jobs``."""
        query = _RECORDS.where(JOBS.c.correlation_id == batch_id, JOBS.c.status.in_(_OPEN))
        jobs = (job_of(record) for (record,) in self._all(query.order_by(JOBS.c.id)))
        return tuple(job.id for job in jobs if not job.cancel_requested)

    def line_jobs(self, batch_id: BatchId, *, first: int, limit: int) -> Mapping[int, Job]:
        """See ``BatchViews.line_jobs``."""
        # Ids of one batch sort by line, so its lines are a range of the primary key. The condition
        # on the batch is applied below: with it, SQLite would scan the whole batch by its index.
        # SQLAlchemy renders BETWEEN with a COLLATE that PostgreSQL cannot parse.
        query = _RECORDS.where(
            JOBS.c.id >= job_of_line(batch_id, first),
            JOBS.c.id <= job_of_line(batch_id, first + limit - 1),
        )
        jobs = [job_of(record) for (record,) in self._all(query)]
        return {line_of_job(job.id): job for job in jobs if job.correlation_id == batch_id}

    def streams(
        self,
        type_name: str,
        *,
        limit: int,
        after: str | None = None,
        oldest_first: bool = False,
        owner: Owner | None = None,
    ) -> tuple[StreamName, ...]:
        """See ``BatchViews.streams``."""
        whose = _whose(owner)
        query = select(EVENTS.c.stream).where(EVENTS.c.type == type_name, *whose)
        position: Any = EVENTS.c.position
        if after is not None:
            cursor = (
                select(EVENTS.c.position)
                .where(EVENTS.c.stream == after, EVENTS.c.type == type_name, *whose)
                .scalar_subquery()
            )
            query = query.where(position > cursor if oldest_first else position < cursor)
        query = query.order_by(position if oldest_first else position.desc()).limit(limit)
        return tuple(StreamName(stream) for (stream,) in self._all(query))

    def unfinished(self, *, owner: Owner | None = None) -> tuple[BatchId, ...]:
        """See ``BatchViews.unfinished``."""
        later = EVENTS.alias()
        ended = exists().where(
            later.c.stream == EVENTS.c.stream,
            later.c.type.in_((BatchEnded.__name__, BatchFailed.__name__)),
        )
        query = select(EVENTS.c.stream).where(
            EVENTS.c.type == BatchSubmitted.__name__, ~ended, *_whose(owner)
        )
        found = self._all(query.order_by(EVENTS.c.position))
        return tuple(BatchId(stream) for (stream,) in found)


def _whose(owner: Owner | None) -> list[ColumnElement[bool]]:
    owned = select(OWNED_STREAMS.c.stream).where(OWNED_STREAMS.c.owner == owner)
    return [] if owner is None else [EVENTS.c.stream.in_(owned)]
