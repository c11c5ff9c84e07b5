"""Folds events into a jobs table, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, insert, select, update

from domain.job.state import Job, fold_recorded, is_job_event
from domain.log.record import RecordedEvent
from domain.usage.fold import CACHE_TYPES
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.row_codec import record_of, record_text, storable
from ops.adapters.event_log.tables import JOBS, NEXT_JOBS, JobRow

#: Columns that later events of a job may change.
_CHANGING = tuple(name for name in JobRow.model_fields if name not in {"id", "accepted_position"})

_ROW = {
    table.name: HotStatement(select(table.c.record).where(table.c.id == bindparam("job_id")))
    for table in (JOBS, NEXT_JOBS)
}
_INSERT = {table.name: HotStatement(insert(table).inline()) for table in (JOBS, NEXT_JOBS)}
_UPDATE = {
    table.name: HotStatement(
        update(table).where(table.c.id == bindparam("job_id")), columns=_CHANGING
    )
    for table in (JOBS, NEXT_JOBS)
}


class JobFold:
    """The rows of some jobs: read first, folded in memory, written at the end.

    Args:
        connection: In the transaction that appends or reads the events.
        table: The projection's table.
        jobs: The jobs of the events to fold, and those that the events name.
    """

    def __init__(self, connection: Connection, table: Table, jobs: Iterable[str]) -> None:
        self._connection = connection
        self._table = table
        self._jobs: dict[str, Job] = {}
        for job_id in jobs:
            job = read_job(connection, table, job_id)
            if job is not None:
                self._jobs[job_id] = job
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
        fresh = [job_columns(self._jobs[job_id]) for job_id in self._changed - self._known]
        changed = [
            {"job_id": job_id, **job_columns(self._jobs[job_id])}
            for job_id in self._changed & self._known
        ]
        if fresh:
            _INSERT[self._table.name].run_many(self._connection, fresh)
        if changed:
            _UPDATE[self._table.name].run_many(self._connection, changed)


def named_job(event: RecordedEvent) -> str | None:
    """Return the job that an event belongs to, or that it names as the cause of a restore."""
    if is_job_event(event):
        return event.stream
    return str(event.data["job"]) if event.type in CACHE_TYPES else None


def read_job(connection: Connection, table: Table, job_id: str) -> Job | None:
    """Return a job of the projection in ``table``; ``None`` if it has no such job."""
    row = _ROW[table.name].row(connection, {"job_id": job_id})
    return None if row is None else job_of(row[0])


def job_columns(job: Job) -> dict[str, Any]:
    """Return a job as values by column."""
    asked = job.submitted
    columns: dict[str, Any] = {
        "id": job.id,
        "accepted_position": job.accepted_position,
        "position": job.position,
        "status": job.status.value,
        "priority": asked.priority.value,
        "model": asked.model,
        "agent": asked.agent,
        "owner": asked.owner,
        "correlation_id": job.correlation_id,
        "created_at": job.created_at,
        "request": asked.request,
        "idempotency": asked.idempotency,
        "asked": asked.asked,
        "due_at": job.due_at,
        "bound_model": asked.bound_model,
        "waits_for_model": asked.waits_for_model,
        "cancel_requested": job.cancel_requested,
        "record": record_text(job),
    }
    return {
        name: storable(value) if isinstance(value, str) else value
        for name, value in columns.items()
    }


def job_of(record: str) -> Job:
    """Return the job of a column ``record``."""
    return record_of(Job, record)
