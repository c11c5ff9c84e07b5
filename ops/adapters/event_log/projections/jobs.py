"""Folds events into a jobs table, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, Table, bindparam, insert, select, update

from domain.job.view import JobView, is_job_event, project_job
from domain.log.record import RecordedEvent
from domain.usage.fold import CACHE_TYPES
from domain.values import JobStatus, Timings, Usage
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.row_codec import storable
from ops.adapters.event_log.tables import JOBS, NEXT_JOBS

_NESTED = {"usage": Usage, "timings": Timings}
_NESTED_FIELDS = {name: tuple(field.name for field in fields(cls)) for name, cls in _NESTED.items()}
_PLAIN_FIELDS = tuple(field.name for field in fields(JobView) if field.name not in _NESTED)
_COLUMNS = tuple(column.name for column in JOBS.columns)
#: Columns that later events of a job may change.
_CHANGING = tuple(name for name in _COLUMNS if name not in {"id", "accepted_position"})

_ROW = {
    table.name: HotStatement(select(table).where(table.c.id == bindparam("job_id")))
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
        self._views: dict[str, JobView] = {}
        for job_id in jobs:
            view = read_view(connection, table, job_id)
            if view is not None:
                self._views[job_id] = view
        self._known = frozenset(self._views)
        self._accepted: dict[str, int] = {}
        self._changed: set[str] = set()

    def fold(self, events: Sequence[RecordedEvent]) -> list[JobView | None]:
        """Fold all of ``events`` in, or none if one of them cannot follow its job's state.

        Returns:
            For each event the row after it of its job, or of the job that it names.
        """
        views: dict[str, JobView] = {}
        accepted: dict[str, int] = {}
        after: list[JobView | None] = []
        for event in events:
            job_id = named_job(event)
            view = None if job_id is None else views.get(job_id) or self._views.get(job_id)
            if is_job_event(event):
                view = views[event.stream] = project_job(view, event)
                accepted.setdefault(event.stream, event.position)
            after.append(view)
        self._views |= views
        self._accepted = accepted | self._accepted
        self._changed |= set(views)
        return after

    def write(self) -> None:
        """Write the rows that changed."""
        fresh = [
            {"accepted_position": self._accepted[job_id], **view_values(self._views[job_id])}
            for job_id in self._changed - self._known
        ]
        changed = [
            {"job_id": job_id, **view_values(self._views[job_id])}
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


def read_view(connection: Connection, table: Table, job_id: str) -> JobView | None:
    """Return a job of the projection in ``table``; ``None`` if it has no such job."""
    row = _ROW[table.name].row(connection, {"job_id": job_id})
    return None if row is None else view_of(row)


def view_values(view: JobView) -> dict[str, Any]:
    """Return a job as values by column."""
    values: dict[str, Any] = {name: getattr(view, name) for name in _PLAIN_FIELDS}
    for name, names in _NESTED_FIELDS.items():
        nested = getattr(view, name)
        for part in names:
            values[part] = getattr(nested, part)
    return {
        name: storable(value) if isinstance(value, str) else value for name, value in values.items()
    }


def view_of(row: Sequence[Any]) -> JobView:
    """Return the job of a row that has the columns of ``JOBS``."""
    columns = dict(zip(_COLUMNS, row, strict=True))
    plain = {name: columns[name] for name in _PLAIN_FIELDS}
    nested = {
        name: cls(**{part: columns[part] for part in _NESTED_FIELDS[name]})
        for name, cls in _NESTED.items()
    }
    return JobView(**plain | nested | {"status": JobStatus(columns["status"])})
