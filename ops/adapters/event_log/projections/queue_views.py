"""``domain.job.listing.QueueViews``, read from jobs, payload sizes and ``JobSubmitted`` events."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sqlalchemy import Engine, Select, bindparam, func, select

from domain.job.eta import MeasuredJob, QueuedJob, RunningJob
from domain.job.fair_scheduler import line_of
from domain.job.listing import OpenJobs
from domain.values import JobId, JobStatus, Owner, Priority
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.tables import EVENTS, JOBS, PAYLOADS

_WITH_SUBMISSION = JOBS.join(EVENTS, EVENTS.c.position == JOBS.c.accepted_position)
_SIZE = PAYLOADS.c.digest == JOBS.c.request


def _by_acceptance(query: Select[tuple[object, ...]]) -> HotStatement:
    return HotStatement(query.order_by(JOBS.c.accepted_position).limit(bindparam("rows_max")))


_QUEUED = _by_acceptance(
    select(JOBS.c.id, JOBS.c.agent, JOBS.c.bound_model, PAYLOADS.c.bytes, EVENTS.c.data)
    .select_from(_WITH_SUBMISSION.outerjoin(PAYLOADS, _SIZE))
    .where(JOBS.c.status == JobStatus.QUEUED.value, JOBS.c.priority == bindparam("priority"))
)
_RUNNING = _by_acceptance(
    select(
        JOBS.c.id,
        JOBS.c.priority,
        JOBS.c.started_at,
        JOBS.c.prompt_tokens,
        JOBS.c.cached_tokens,
        EVENTS.c.data,
    )
    .select_from(_WITH_SUBMISSION)
    .where(JOBS.c.status == JobStatus.RUNNING.value)
)
_OPEN_STATES = tuple(status.value for status in JobStatus if not status.is_terminal)
_OPEN = (
    select(JOBS.c.status, JOBS.c.priority, func.count(), func.min(JOBS.c.created_at))
    .where(JOBS.c.status.in_(_OPEN_STATES))
    .group_by(JOBS.c.status, JOBS.c.priority)
)
_OPEN_OF = select(func.count()).where(
    JOBS.c.owner == bindparam("owner"), JOBS.c.status.in_(_OPEN_STATES)
)
_OPEN_AGENTS = select(func.count(JOBS.c.agent.distinct())).where(JOBS.c.status.in_(_OPEN_STATES))
_MEASURED = HotStatement(
    select(
        JOBS.c.prompt_tokens,
        JOBS.c.cached_tokens,
        JOBS.c.completion_tokens,
        JOBS.c.prefill_ms,
        JOBS.c.decode_ms,
        PAYLOADS.c.bytes,
    )
    .select_from(JOBS.outerjoin(PAYLOADS, _SIZE))
    .where(JOBS.c.status == JobStatus.COMPLETED.value)
    .order_by(JOBS.c.accepted_position.desc())
    .limit(bindparam("rows_max"))
)


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
            rows = _QUEUED.rows(connection, {"priority": priority.value, "rows_max": limit})
        return tuple(
            QueuedJob(
                id=JobId(job_id),
                line=line_of(agent, submitted.get("owner")),
                priority=priority,
                request_bytes=size,
                max_tokens=_max_tokens(submitted),
                bound_model=bound_model,
            )
            for job_id, agent, bound_model, size, data in rows
            for submitted in (json.loads(data),)
        )

    def running(self, *, limit: int) -> tuple[RunningJob, ...]:
        """See ``QueueViews.running``."""
        with reading(self._engine) as connection:
            rows = _RUNNING.rows(connection, {"rows_max": limit})
        return tuple(
            RunningJob(
                id=JobId(job_id),
                priority=Priority(priority),
                started_at=started_at,
                prompt_tokens=prompt_tokens,
                cached_tokens=cached_tokens,
                max_tokens=_max_tokens(json.loads(data)),
            )
            for job_id, priority, started_at, prompt_tokens, cached_tokens, data in rows
        )

    def measured(self, *, limit: int) -> tuple[MeasuredJob, ...]:
        """See ``QueueViews.measured``."""
        with reading(self._engine) as connection:
            rows = _MEASURED.rows(connection, {"rows_max": limit})
        return tuple(
            MeasuredJob(
                prompt_tokens=prompt,
                cached_tokens=cached,
                completion_tokens=completion,
                prefill_ms=prefill_ms,
                decode_ms=decode_ms,
                request_bytes=size,
            )
            for prompt, cached, completion, prefill_ms, decode_ms, size in rows
        )

    def open_jobs(self) -> OpenJobs:
        """See ``QueueViews.open_jobs``."""
        with reading(self._engine) as connection:
            rows = connection.execute(_OPEN).all()
            (agents,) = connection.execute(_OPEN_AGENTS).one()
        queued = {
            Priority(priority): (int(count), str(oldest))
            for status, priority, count, oldest in rows
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


def _max_tokens(submitted: Mapping[str, object]) -> int | None:
    found = submitted.get("max_tokens")
    return found if isinstance(found, int) else None
