"""The jobs table: folded from events, and read as ``JobViews`` and ``QueueViews``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from typing import Any

from sqlalchemy import (
    Connection,
    Select,
    Table,
    bindparam,
    exists,
    func,
    insert,
    literal,
    select,
)

from domain.job.eta import MeasuredJob, QueuedJob, RunningJob
from domain.job.fair_scheduler import line_of
from domain.job.listing import ALL_JOBS, JobFilter, JobPage, OpenJobs, indexed_labels
from domain.job.state import Job, fold_recorded, is_job_event
from domain.log.record import RecordedEvent
from domain.usage.fold import CACHE_TYPES
from domain.values import Digest, JobId, JobStatus, Owner, Priority
from ops.log.database import SqlViews, reading
from ops.log.hot_statements import HotStatement, RecordTable
from ops.log.row_codec import record_of, record_text, storable
from ops.log.tables import JOB_LABELS, JOBS, PAYLOADS


class JobFold:
    """The rows of some jobs: read first, folded in memory, written at the end.

    Args:
        jobs: The jobs of the events to fold, and those that the events name.
    """

    def __init__(self, connection: Connection, rows: JobTable, jobs: Iterable[str]) -> None:
        self._connection = connection
        self._rows = rows
        found = {job_id: rows.read(connection, job_id) for job_id in jobs}
        self._jobs = {name: job_of(record) for name, record in found.items() if record is not None}
        self._known = frozenset(self._jobs)
        self._changed: set[str] = set()

    def fold(self, events: Sequence[RecordedEvent]) -> list[Job | None]:
        """Fold all of ``events`` in, or none if one of them cannot follow its job's state.

        Returns:
            For each event the row after it of its job, or of the job that it names.
        """
        jobs: dict[str, Job] = {}
        after: list[Job | None] = []
        for event in events:
            job_id = named_job(event)
            job = None if job_id is None else jobs.get(job_id) or self._jobs.get(job_id)
            if is_job_event(event):
                job = jobs[event.stream] = fold_recorded(job, event)
            after.append(job)
        self._jobs |= jobs
        self._changed |= set(jobs)
        return after

    def write(self) -> None:
        """Write the rows that changed."""
        self._rows.write_jobs(
            self._connection,
            fresh=[self._jobs[job_id] for job_id in self._changed - self._known],
            changed=[self._jobs[job_id] for job_id in self._changed & self._known],
        )


def named_job(event: RecordedEvent) -> str | None:
    """Return the job that an event belongs to, or that it names as the cause of a restore."""
    if is_job_event(event):
        return event.stream
    return str(event.data["job"]) if event.type in CACHE_TYPES else None


class JobTable(RecordTable):
    """The rows of a table of jobs, and those of their labels."""

    def __init__(self, jobs: Table, labels: Table) -> None:
        super().__init__(jobs, fixed={"accepted_position"})
        self._labels = HotStatement(insert(labels).inline())

    def write_jobs(
        self, connection: Connection, *, fresh: Sequence[Job], changed: Sequence[Job]
    ) -> None:
        """Insert and update rows; labels never change."""
        self.write(
            connection,
            fresh=[job_columns(job) for job in fresh],
            changed=[job_columns(job) for job in changed],
        )
        labels = [
            {"label": storable(label), "accepted_position": job.accepted_position}
            for job in fresh
            for label in indexed_labels(job.submitted)
        ]
        if labels:
            self._labels.run_many(connection, labels)


def job_columns(job: Job) -> dict[str, Any]:
    """Return a job as values by column."""
    asked = job.submitted
    columns = {
        "id": job.id,
        "status": job.status.value,
        "priority": asked.priority.value,
        "model": asked.model,
        "agent": asked.agent,
        "owner": asked.owner,
        "correlation_id": job.correlation_id,
        "idempotency": asked.idempotency,
        "asked": asked.asked,
        "unique_key": job.unique,
        "unique_until": asked.unique_until,
        "held_until": job.held_until,
        "awaits": job.awaits,
        "due_at": job.due_at,
        "bound_model": asked.bound_model,
        "model_wanted_since": job.model_wanted_since,
        "record": record_text(job),
    }
    texts = {name: value and storable(value) for name, value in columns.items()}
    return {**texts, "accepted_position": job.accepted_position}


def job_of(record: str) -> Job:
    """Return the job of a column ``record``."""
    return record_of(Job, record)


JOB_ROWS = JobTable(JOBS, JOB_LABELS)
#: Upper limit of the rows of one page.
PAGE_ROWS_MAX = 1000
#: Lists read the record alone: an object for each row would double the cost of a page.
_RECORDS = select(JOBS.c.record)
_UNFINISHED = [status.value for status in JobStatus if not status.is_terminal]
_OPEN = [JobStatus.QUEUED.value, JobStatus.RUNNING.value]
_KEYED = HotStatement(select(JOBS.c.record).where(JOBS.c.idempotency == bindparam("key")))
#: The job that is unique at an instant.
UNIQUE_HOLDER = HotStatement(
    select(JOBS.c.id)
    .where(JOBS.c.unique_key == bindparam("unique"), JOBS.c.unique_until > bindparam("at"))
    .order_by(JOBS.c.unique_until.desc())
    .limit(1)
)
_ALIKE = HotStatement(
    select(JOBS.c.record)
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
    select(JOBS.c.record)
    .where(
        JOBS.c.status.in_([literal(status) for status in _UNFINISHED]),
        JOBS.c.due_at <= bindparam("now"),
    )
    .order_by(JOBS.c.accepted_position)
    .limit(PAGE_ROWS_MAX)
)
_AWAITED = JOBS.alias("awaited")
_HELD = HotStatement(
    select(JOBS.c.record)
    .where(
        JOBS.c.held_until <= bindparam("now"),
        JOBS.c.accepted_position > bindparam("after"),
        ~exists().where(
            _AWAITED.c.id == JOBS.c.awaits,
            _AWAITED.c.status.in_([literal(status) for status in _UNFINISHED]),
        ),
    )
    .order_by(JOBS.c.accepted_position)
    .limit(bindparam("rows_max"))
)
_COUNT_HELD = select(func.count()).where(JOBS.c.held_until.is_not(None))
_BOUND_MODELS = HotStatement(
    select(JOBS.c.bound_model)
    .distinct()
    .where(
        JOBS.c.status.in_([literal(status) for status in _OPEN]), JOBS.c.bound_model.is_not(None)
    )
    .order_by(JOBS.c.bound_model)
)


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
_OPEN_BY_QUEUE = (
    select(JOBS.c.status, JOBS.c.priority, func.count(), func.min(JOBS.c.accepted_position))
    .where(JOBS.c.status.in_(_OPEN))
    .group_by(JOBS.c.status, JOBS.c.priority)
)
_OPEN_OF = HotStatement(
    select(func.count()).where(
        JOBS.c.owner == bindparam("owner"),
        JOBS.c.status.in_([literal(status) for status in _OPEN]),
    )
)
_OPEN_AGENTS = select(func.count(JOBS.c.agent.distinct())).where(JOBS.c.status.in_(_OPEN))


@lru_cache(maxsize=64)  # two for each choice of filters
def _page(filters: tuple[str, ...], labels: int, *, has_cursor: bool) -> HotStatement:
    """Return the query of a page of jobs, newest first, filtered by columns of these names.

    With labels it walks along the jobs of the last one.
    """
    equal = {name: JOBS.c[name] == bindparam(name) for name in filters}
    query = _RECORDS.where(*equal.values())
    position: Any = JOBS.c.accepted_position
    for number in range(labels):
        label = JOB_LABELS.alias()
        query = query.join(label, label.c.accepted_position == JOBS.c.accepted_position)
        query = query.where(label.c.label == bindparam(f"label_{number}"))
        position = label.c.accepted_position
    if has_cursor:
        accepted = select(JOBS.c.accepted_position).where(JOBS.c.id == bindparam("before"))
        if "owner" in equal:
            accepted = accepted.where(equal["owner"])
        query = query.where(position < accepted.scalar_subquery())
    return HotStatement(query.order_by(position.desc()).limit(bindparam("rows_max")))


class SqlJobViews(SqlViews):
    """Queries the jobs projection, and the sizes of requests for estimates."""

    def get(self, job_id: JobId) -> Job | None:
        """See ``JobViews.get``."""
        with reading(self._engine) as connection:
            record = JOB_ROWS.read(connection, job_id)
        return None if record is None else job_of(record)

    def page(
        self, wanted: JobFilter = ALL_JOBS, *, limit: int, before: JobId | None = None
    ) -> JobPage:
        """See ``JobViews.page``."""
        rows_max = max(1, min(limit, PAGE_ROWS_MAX))
        equal = {
            "status": wanted.status and wanted.status.value,
            "agent": wanted.agent,
            "model": wanted.model,
            "priority": wanted.priority and wanted.priority.value,
            "owner": wanted.owner,
        }
        filters = {name: value for name, value in equal.items() if value is not None}
        statement = _page(tuple(filters), len(wanted.labels), has_cursor=before is not None)
        named = {f"label_{number}": storable(label) for number, label in enumerate(wanted.labels)}
        values = {**filters, **named, "before": before, "rows_max": rows_max + 1}
        jobs = [job_of(record) for (record,) in self._found(statement, **values)]
        # No event is stamped earlier than the one before it.
        found = tuple(takewhile(lambda job: job.created_at >= (wanted.since or ""), jobs))
        return JobPage(jobs=found[:rows_max], has_more=len(found) > rows_max)

    def unfinished(self, *, with_held: bool = True) -> tuple[Job, ...]:
        """See ``JobViews.unfinished``."""
        query = _RECORDS.where(JOBS.c.status.in_(_UNFINISHED if with_held else _OPEN))
        return self._jobs(query.order_by(JOBS.c.accepted_position))

    def held(self, now: str, *, limit: int, after: int = 0) -> tuple[Job, ...]:
        """See ``JobViews.held``."""
        rows = self._found(_HELD, now=now, after=after, rows_max=limit)
        return tuple(job_of(record) for (record,) in rows)

    def count_held(self, *, owner: Owner | None = None) -> int:
        """See ``JobViews.count_held``."""
        whose = [] if owner is None else [JOBS.c.owner == owner]
        return int(self._all(_COUNT_HELD.where(*whose))[0][0])

    def overdue(self, now: str) -> tuple[Job, ...]:
        """See ``JobViews.overdue``."""
        return tuple(job_of(record) for (record,) in self._found(_OVERDUE, now=now))

    def keyed(self, key: Digest) -> Job | None:
        """See ``JobViews.keyed``."""
        found = self._found(_KEYED, key=key)
        return job_of(found[0][0]) if found else None

    def holder(self, unique: Digest, *, at: str) -> Job | None:
        """See ``JobViews.holder``."""
        found = self._found(UNIQUE_HOLDER, unique=unique, at=at)
        return self.get(JobId(found[0][0])) if found else None

    def alike(self, asked: Digest, *, limit: int) -> tuple[Job, ...]:
        """See ``JobViews.alike``."""
        found = self._found(_ALIKE, asked=asked, rows=limit)
        return tuple(job_of(record) for (record,) in found)

    def waiting(self, priority: Priority, *, owner: Owner | None = None) -> dict[str | None, int]:
        """See ``JobViews.waiting``."""
        statement = _WAITING if owner is None else _WAITING_OF
        found = self._found(statement, priority=priority.value, owner=owner)
        return {model: int(count) for model, count in found}

    def counts(self) -> dict[JobStatus, int]:
        """See ``JobViews.counts``."""
        query = select(JOBS.c.status, func.count()).group_by(JOBS.c.status)
        found = {str(status): int(count) for status, count in self._all(query)}
        return {status: found.get(status.value, 0) for status in JobStatus}

    def bound_models(self) -> tuple[str, ...]:
        """See ``JobViews.bound_models``."""
        return tuple(str(model) for (model,) in self._found(_BOUND_MODELS))

    def bound(self, model: str, *, accepted_before: str, limit: int) -> tuple[Job, ...]:
        """See ``JobViews.bound``."""
        query = _RECORDS.where(
            JOBS.c.status.in_(_OPEN),
            JOBS.c.bound_model == model,
            JOBS.c.model_wanted_since < accepted_before,
        )
        return self._jobs(query.order_by(JOBS.c.accepted_position).limit(limit))

    def queued(self, priority: Priority, *, limit: int) -> tuple[QueuedJob, ...]:
        """See ``QueueViews.queued``."""
        with reading(self._engine) as connection:
            found = _sized(connection, _QUEUED, {"priority": priority.value, "rows_max": limit})
        return tuple(
            QueuedJob(
                id=job.id,
                line=line_of(job.submitted.agent, job.submitted.owner),
                priority=priority,
                urgency=job.submitted.urgency,
                has_begun=job.has_begun,
                request_bytes=size,
                max_tokens=job.submitted.max_tokens,
                bound_model=job.submitted.bound_model,
            )
            for job, size in found
        )

    def running(self, *, limit: int) -> tuple[RunningJob, ...]:
        """See ``QueueViews.running``."""
        rows = self._found(_RUNNING, status=JobStatus.RUNNING.value, rows_max=limit)
        jobs = [job_of(record) for (record,) in rows]
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
            rows = connection.execute(_OPEN_BY_QUEUE).all()
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
        return int(self._found(_OPEN_OF, owner=owner)[0][0])

    def _jobs(self, query: Select[Any]) -> tuple[Job, ...]:
        return tuple(job_of(record) for (record,) in self._all(query))


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
