"""``domain.ports.JobViews`` on the jobs table."""

from __future__ import annotations

from sqlalchemy import Engine, Select, bindparam, func, literal, or_, select

from domain.job.listing import JobPage
from domain.job.view import JobView
from domain.values import Digest, JobId, JobStatus, Owner, Priority
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.projections.jobs import read_view, view_of
from ops.adapters.event_log.tables import JOBS

#: Upper limit of the rows of one page.
PAGE_ROWS_MAX = 1000
_OPEN = [status.value for status in JobStatus if not status.is_terminal]
_KEYED = HotStatement(select(JOBS).where(JOBS.c.idempotency == bindparam("key")))
_ALIKE = HotStatement(
    select(JOBS)
    .where(JOBS.c.asked == bindparam("asked"))
    .order_by(JOBS.c.accepted_position.desc())
    .limit(bindparam("rows"))
)
_COUNT_WAITING = (
    select(JOBS.c.bound_model, func.count())
    .where(JOBS.c.status == JobStatus.QUEUED.value, JOBS.c.priority == bindparam("priority"))
    .group_by(JOBS.c.bound_model)
)
_WAITING = HotStatement(_COUNT_WAITING)
_WAITING_OF = HotStatement(_COUNT_WAITING.where(JOBS.c.owner == bindparam("owner")))
# Read once a second and more by an idle service.
_OVERDUE = HotStatement(
    select(JOBS)
    .where(
        JOBS.c.status.in_([literal(status) for status in _OPEN]),
        ~JOBS.c.cancel_requested,
        or_(
            JOBS.c.finish_deadline <= bindparam("now"),
            (JOBS.c.deadline <= bindparam("now")) & (JOBS.c.attempt == 0),
        ),
    )
    .order_by(JOBS.c.accepted_position)
    .limit(PAGE_ROWS_MAX)
)
_BOUND_MODELS = HotStatement(
    select(JOBS.c.bound_model)
    .distinct()
    .where(
        JOBS.c.status.in_([literal(status) for status in _OPEN]), JOBS.c.bound_model.is_not(None)
    )
    .order_by(JOBS.c.bound_model)
)


class SqlJobViews:
    """Queries the jobs projection.

    Args:
        engine: From ``reader_engine``.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def get(self, job_id: JobId) -> JobView | None:
        """See ``JobViews.get``."""
        with reading(self._engine) as connection:
            return read_view(connection, JOBS, job_id)

    def page(
        self,
        *,
        limit: int,
        before: JobId | None = None,
        status: JobStatus | None = None,
        agent: str | None = None,
        model: str | None = None,
        priority: Priority | None = None,
        since: str | None = None,
        owner: Owner | None = None,
    ) -> JobPage:
        """See ``JobViews.page``."""
        rows_max = max(1, min(limit, PAGE_ROWS_MAX))
        query = select(JOBS)
        if before is not None:
            accepted = select(JOBS.c.accepted_position).where(JOBS.c.id == before)
            if owner is not None:
                accepted = accepted.where(JOBS.c.owner == owner)
            query = query.where(JOBS.c.accepted_position < accepted.scalar_subquery())
        wanted = {
            "status": status and status.value,
            "agent": agent,
            "model": model,
            "priority": priority and priority.value,
            "owner": owner,
        }
        for name, value in wanted.items():
            if value is not None:
                query = query.where(JOBS.c[name] == value)
        if since is not None:
            query = query.where(JOBS.c.created_at >= since)
        views = self._views(query.order_by(JOBS.c.accepted_position.desc()).limit(rows_max + 1))
        return JobPage(jobs=views[:rows_max], has_more=len(views) > rows_max)

    def unfinished(self) -> tuple[JobView, ...]:
        """See ``JobViews.unfinished``."""
        query = select(JOBS).where(JOBS.c.status.in_(_OPEN))
        return self._views(query.order_by(JOBS.c.accepted_position))

    def overdue(self, now: str) -> tuple[JobView, ...]:
        """See ``JobViews.overdue``."""
        with reading(self._engine) as connection:
            return tuple(view_of(row) for row in _OVERDUE.rows(connection, {"now": now}))

    def keyed(self, key: Digest) -> JobView | None:
        """See ``JobViews.keyed``."""
        with reading(self._engine) as connection:
            row = _KEYED.row(connection, {"key": key})
            return None if row is None else view_of(row)

    def alike(self, asked: Digest, *, limit: int) -> tuple[JobView, ...]:
        """See ``JobViews.alike``."""
        with reading(self._engine) as connection:
            rows = _ALIKE.rows(connection, {"asked": asked, "rows": limit})
            return tuple(view_of(row) for row in rows)

    def waiting(self, priority: Priority, *, owner: Owner | None = None) -> dict[str | None, int]:
        """See ``JobViews.waiting``."""
        statement, values = _WAITING, {"priority": priority.value}
        if owner is not None:
            statement, values = _WAITING_OF, values | {"owner": owner}
        with reading(self._engine) as connection:
            rows = statement.rows(connection, values)
        return {model: int(count) for model, count in rows}

    def counts(self) -> dict[JobStatus, int]:
        """See ``JobViews.counts``."""
        query = select(JOBS.c.status, func.count()).group_by(JOBS.c.status)
        with reading(self._engine) as connection:
            found = {str(row[0]): int(row[1]) for row in connection.execute(query)}
        return {status: found.get(status.value, 0) for status in JobStatus}

    def bound_models(self) -> tuple[str, ...]:
        """See ``JobViews.bound_models``."""
        with reading(self._engine) as connection:
            return tuple(str(row[0]) for row in _BOUND_MODELS.rows(connection, {}))

    def bound(self, model: str, *, accepted_before: str, limit: int) -> tuple[JobView, ...]:
        """See ``JobViews.bound``."""
        has_begun = JOBS.c.status == JobStatus.RUNNING.value
        is_due = or_(~JOBS.c.waits_for_model, JOBS.c.created_at < accepted_before, has_begun)
        query = select(JOBS).where(
            JOBS.c.status.in_(_OPEN), JOBS.c.bound_model == model, ~JOBS.c.cancel_requested, is_due
        )
        return self._views(query.order_by(JOBS.c.accepted_position).limit(limit))

    def _views(self, query: Select[tuple[object, ...]]) -> tuple[JobView, ...]:
        with reading(self._engine) as connection:
            return tuple(view_of(row) for row in connection.execute(query))
