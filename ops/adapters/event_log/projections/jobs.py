"""Folds events into a jobs table, inside the caller's transaction.

There are two such tables: readers query ``jobs``, a rebuild fills ``jobs_next``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, insert, select, update

from domain.job.view import JOB_VIEW_VERSION, JobView, is_job_event, job_id_of, project_job
from domain.log.record import RecordedEvent
from domain.values import JobStatus, Timings, Usage
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.row_codec import event_of, storable
from ops.adapters.event_log.tables import CHECKPOINTS, EVENTS, JOBS, NEXT_JOBS

#: Events folded in one transaction when a projection catches up.
CATCH_UP_EVENTS_MAX = 1000

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
_CHECKPOINT = HotStatement(
    select(CHECKPOINTS.c.version, CHECKPOINTS.c.position).where(
        CHECKPOINTS.c.name == bindparam("name")
    )
)
_MOVE_CHECKPOINT = HotStatement(
    update(CHECKPOINTS).where(CHECKPOINTS.c.name == bindparam("table")),
    columns=("version", "position"),
)
_FIRST_CHECKPOINT = HotStatement(insert(CHECKPOINTS).inline())


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The last position that a projection has read, and the version of the code that wrote it."""

    version: int = JOB_VIEW_VERSION
    position: int = 0

    @property
    def is_current_version(self) -> bool:
        """Whether this code wrote the projection."""
        return self.version == JOB_VIEW_VERSION


def read_checkpoint(connection: Connection, table: Table) -> Checkpoint:
    """Return the checkpoint of the projection in ``table``; position 0 if it has none."""
    row = _CHECKPOINT.row(connection, {"name": table.name})
    if row is None:
        return Checkpoint()
    version, position = row
    return Checkpoint(version=version, position=position)


def write_checkpoint(connection: Connection, table: Table, position: int) -> None:
    """Set the checkpoint of the projection in ``table``."""
    values = {"version": JOB_VIEW_VERSION, "position": position}
    if not _MOVE_CHECKPOINT.run(connection, {"table": table.name, **values}):
        _FIRST_CHECKPOINT.run(connection, {"name": table.name, **values})


def clear(connection: Connection, table: Table) -> None:
    """Empty a projection and delete its checkpoint."""
    connection.execute(delete(table))
    connection.execute(delete(CHECKPOINTS).where(CHECKPOINTS.c.name == table.name))


def catch_up(connection: Connection, table: Table) -> Checkpoint:
    """Fold the next ``CATCH_UP_EVENTS_MAX`` events and return the new checkpoint.

    Raises:
        CorruptLog: If an event cannot be read.
    """
    before = read_checkpoint(connection, table)
    rows = connection.execute(
        select(EVENTS)
        .where(EVENTS.c.position > before.position)
        .order_by(EVENTS.c.position)
        .limit(CATCH_UP_EVENTS_MAX)
    ).all()
    if not rows:
        return before
    events = [event_of(row) for row in rows]
    fold_in(connection, table, events)
    return Checkpoint(position=events[-1].position)


def fold_in(connection: Connection, table: Table, events: Sequence[RecordedEvent]) -> None:
    """Fold the next events into a projection and move its checkpoint to the last of them."""
    jobs = JobFold(connection, table, {event.stream for event in events})
    jobs.fold(events)
    jobs.write()
    write_checkpoint(connection, table, events[-1].position)


class JobFold:
    """The rows of some jobs: read first, folded in memory, written at the end.

    Args:
        connection: In the transaction that appends or reads the events.
        table: The projection's table.
        streams: The streams of the events to fold; streams other than jobs have no rows.
    """

    def __init__(self, connection: Connection, table: Table, streams: Iterable[str]) -> None:
        self._connection = connection
        self._table = table
        self._views: dict[str, JobView] = {}
        for stream in streams:
            view = read_view(connection, table, stream)
            if view is not None:
                self._views[stream] = view
        self._known = frozenset(self._views)
        self._accepted: dict[str, int] = {}
        self._changed: set[str] = set()

    def fold(self, events: Sequence[RecordedEvent]) -> None:
        """Fold all of ``events`` in, or none if one of them cannot follow its job's state."""
        views: dict[str, JobView] = {}
        accepted: dict[str, int] = {}
        for event in events:
            if is_job_event(event):
                job_id = job_id_of(event)
                views[job_id] = project_job(views.get(job_id) or self._views.get(job_id), event)
                accepted.setdefault(job_id, event.position)
        self._views |= views
        self._accepted = accepted | self._accepted
        self._changed |= set(views)

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
