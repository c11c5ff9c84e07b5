"""``domain.job.listing.QueueViews``, read from jobs and sizes of payloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Engine, bindparam, func, select

from domain.job.eta import MeasuredJob, QueuedJob, RunningJob
from domain.job.fair_scheduler import line_of
from domain.job.listing import OpenJobs
from domain.job.state import Job
from domain.values import JobStatus, Owner, Priority
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.projections.jobs import job_of
from ops.adapters.event_log.tables import JOBS, PAYLOADS

_QUEUED = HotStatement(
    select(JOBS.c.record)
    .where(JOBS.c.status == JobStatus.QUEUED.value, JOBS.c.priority == bindparam("priority"))
    .order_by(JOBS.c.accepted_position)
    .limit(bindparam("rows_max"))
)
_OF_STATUS = select(JOBS.c.record).where(JOBS.c.status == bindparam("status"))
_RUNNING = HotStatement(_OF_STATUS.order_by(JOBS.c.accepted_position).limit(bindparam("rows_max")))
_MEASURED = HotStatement(
    _OF_STATUS.order_by(JOBS.c.accepted_position.desc()).limit(bindparam("rows_max"))
)
_OPEN_STATES = tuple(status.value for status in JobStatus if not status.is_terminal)
_OPEN = (
    select(JOBS.c.status, JOBS.c.priority, func.count(), func.min(JOBS.c.accepted_position))
    .where(JOBS.c.status.in_(_OPEN_STATES))
    .group_by(JOBS.c.status, JOBS.c.priority)
)
_OPEN_OF = select(func.count()).where(
    JOBS.c.owner == bindparam("owner"), JOBS.c.status.in_(_OPEN_STATES)
)
_OPEN_AGENTS = select(func.count(JOBS.c.agent.distinct())).where(JOBS.c.status.in_(_OPEN_STATES))


class SqlQueueViews:
    """Queries the jobs that an ETA is computed from.

    Args:
        engine: From ``reader_engine``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def queued(self, priority: Priority, *, limit: int) -> tuple[QueuedJob, ...]:
        """See ``QueueViews.queued``."""
        with reading(self._engine) as connection:
            found = _sized(connection, _QUEUED, {"priority": priority.value, "rows_max": limit})
        return tuple(
            QueuedJob(
                id=job.id,
                line=line_of(job.submitted.agent, job.submitted.owner),
                priority=priority,
                request_bytes=size,
                max_tokens=job.submitted.max_tokens,
                bound_model=job.submitted.bound_model,
            )
            for job, size in found
        )

    def running(self, *, limit: int) -> tuple[RunningJob, ...]:
        """See ``QueueViews.running``."""
        values = {"status": JobStatus.RUNNING.value, "rows_max": limit}
        with reading(self._engine) as connection:
            jobs = [job_of(record) for (record,) in _RUNNING.rows(connection, values)]
        return tuple(
            RunningJob(
                id=job.id,
                priority=job.submitted.priority,
                started_at=job.started_at or "",
                prompt_tokens=job.usage.prompt_tokens,
                cached_tokens=job.usage.cached_tokens,
                max_tokens=job.submitted.max_tokens,
            )
            for job in jobs
        )

    def measured(self, *, limit: int) -> tuple[MeasuredJob, ...]:
        """See ``QueueViews.measured``."""
        values = {"status": JobStatus.COMPLETED.value, "rows_max": limit}
        with reading(self._engine) as connection:
            found = _sized(connection, _MEASURED, values)
        return tuple(
            MeasuredJob(
                prompt_tokens=job.usage.prompt_tokens,
                cached_tokens=job.usage.cached_tokens,
                completion_tokens=job.usage.completion_tokens,
                prefill_ms=job.timings.prefill_ms,
                decode_ms=job.timings.decode_ms,
                request_bytes=size,
            )
            for job, size in found
        )

    def open_jobs(self) -> OpenJobs:
        """See ``QueueViews.open_jobs``."""
        with reading(self._engine) as connection:
            rows = connection.execute(_OPEN).all()
            (agents,) = connection.execute(_OPEN_AGENTS).one()
            queued = {
                Priority(priority): (int(count), _accepted_at(connection, first))
                for status, priority, count, first in rows
                if status == JobStatus.QUEUED.value
            }
        return OpenJobs(
            waiting={one: queued.get(one, (0, ""))[0] for one in Priority},
            oldest={one: oldest for one, (_, oldest) in queued.items()},
            running=sum(row[2] for row in rows if row[0] == JobStatus.RUNNING.value),
            agents=int(agents),
        )

    def open_jobs_of(self, owner: Owner) -> int:
        """Return how many jobs of an owner are queued or running."""
        with reading(self._engine) as connection:
            return int(connection.execute(_OPEN_OF, {"owner": owner}).scalar_one())


def _sized(
    connection: Connection, statement: HotStatement, values: Mapping[str, Any]
) -> list[tuple[Job, int | None]]:
    """Return the jobs of a query, each with the length of its request in bytes."""
    jobs = [job_of(record) for (record,) in statement.rows(connection, values)]
    requests = {job.submitted.request for job in jobs}
    query = select(PAYLOADS.c.digest, PAYLOADS.c.bytes).where(PAYLOADS.c.digest.in_(requests))
    sizes = {digest: int(size) for digest, size in connection.execute(query)}
    return [(job, sizes.get(job.submitted.request)) for job in jobs]


def _accepted_at(connection: Connection, position: int) -> str:
    query = select(JOBS.c.record).where(JOBS.c.accepted_position == position)
    # The job may have left the queue since; it is still the oldest that was counted.
    return job_of(connection.scalars(query).one()).created_at
