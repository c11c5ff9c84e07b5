"""Folds events into a set of projections, inside the caller's transaction, and notes how far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, Table, bindparam, delete, insert, select, update

from domain.errors import LogUnavailable
from domain.log.record import RecordedEvent
from domain.usage.fold import usage_of
from ops.log.database import reading
from ops.log.hot_statements import HotStatement
from ops.log.projections.agents import AgentFold, agent_rows
from ops.log.projections.jobs import JobFold, JobTable, named_job
from ops.log.projections.owners import OwnerFold
from ops.log.projections.usage import SumTable, UsageFold
from ops.log.row_codec import event_of, read_head, with_texts
from ops.log.tables import (
    CHECKPOINTS,
    EVENTS,
    JOBS,
    NEXT_PROJECTIONS,
    PROJECTIONS,
)

#: Version of the folds and of the bounds of histograms; a change of them needs a rebuild.
PROJECTIONS_VERSION = 1

_CHECKPOINT = HotStatement(
    select(CHECKPOINTS.c.version, CHECKPOINTS.c.position).where(
        CHECKPOINTS.c.name == bindparam("name")
    )
)
_MOVE_CHECKPOINT = HotStatement(
    update(CHECKPOINTS).where(CHECKPOINTS.c.name == bindparam("table")),
    columns=("version", "position"),
)
_FIRST_CHECKPOINT = HotStatement(
    insert(CHECKPOINTS).inline(), columns=("name", "version", "position")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The last position that the projections have read, and the version of the code that wrote."""

    version: int = PROJECTIONS_VERSION
    position: int = 0

    @property
    def is_current_version(self) -> bool:
        """Whether this code wrote the projections."""
        return self.version == PROJECTIONS_VERSION


def are_current(engine: Engine) -> bool:
    """Whether the projections hold every event; false for a log of another version."""
    try:
        with reading(engine) as connection:
            head = read_head(connection).position  # first: a service may append meanwhile
            checkpoint = read_checkpoint(connection, JOBS)
            return checkpoint.is_current_version and checkpoint.position >= head
    except LogUnavailable:
        return False  # tables are missing


def read_checkpoint(connection: Connection, jobs: Table) -> Checkpoint:
    """Return the checkpoint of the projections with the jobs in ``jobs``; 0 if it has none."""
    row = _CHECKPOINT.row(connection, {"name": jobs.name})
    if row is None:
        return Checkpoint(version=PROJECTIONS_VERSION)
    version, position = row
    return Checkpoint(version=version, position=position)


def write_checkpoint(connection: Connection, jobs: Table, position: int) -> None:
    """Set the checkpoint of the projections with the jobs in ``jobs``."""
    values = {"version": PROJECTIONS_VERSION, "position": position}
    if not _MOVE_CHECKPOINT.run(connection, {"table": jobs.name, **values}):
        _FIRST_CHECKPOINT.run(connection, {"name": jobs.name, **values})


#: Events folded in one transaction when the projections catch up.
CATCH_UP_EVENTS_MAX = 1000


class ProjectionSet:
    """Projections that move together.

    Args:
        tables: In the order of ``PROJECTIONS``; the table of jobs names the checkpoint.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = tables
        self.jobs, labels, agents, owned_streams, *sums = tables
        self.job_rows, self.agent_rows = JobTable(self.jobs, labels), agent_rows(agents)
        self.owner_insertion = HotStatement(insert(owned_streams).inline())
        self.usage = tuple(map(SumTable, sums))


LIVE = ProjectionSet(PROJECTIONS)
NEXT = ProjectionSet(NEXT_PROJECTIONS)


class ProjectionFold:
    """The changes of some events: rows are read first, folded in memory, written at the end.

    Args:
        connection: In the transaction that appends or reads the events.
        jobs: The jobs of the events to fold, and those that the events name.
    """

    def __init__(
        self, connection: Connection, projections: ProjectionSet, jobs: Iterable[str]
    ) -> None:
        self._jobs = JobFold(connection, projections.job_rows, jobs)
        self._agents = AgentFold(connection, projections.agent_rows)
        self._owners = OwnerFold(connection, projections.owner_insertion)
        self._usage = UsageFold(connection, projections.usage)

    def fold(self, events: Sequence[RecordedEvent]) -> None:
        """Fold all of ``events`` in, or none if one of them cannot follow its job's state."""
        views = self._jobs.fold(events)
        self._agents.fold(events, views)
        self._owners.fold(events)
        changes = map(usage_of, events, views)
        self._usage.fold(change for change in changes if change is not None)

    def write(self) -> None:
        """Write the rows that changed."""
        self._jobs.write()
        self._agents.write()
        self._owners.write()
        self._usage.write()


def fold_in(
    connection: Connection, projections: ProjectionSet, events: Sequence[RecordedEvent]
) -> None:
    """Fold the next events into projections and move their checkpoint to the last of them.

    Args:
        events: With their texts.
    """
    jobs = {job for event in events if (job := named_job(event)) is not None}
    fold = ProjectionFold(connection, projections, jobs)
    fold.fold(events)
    fold.write()
    write_checkpoint(connection, projections.jobs, events[-1].position)


def catch_up(connection: Connection, projections: ProjectionSet) -> Checkpoint:
    """Fold the next ``CATCH_UP_EVENTS_MAX`` events and return the new checkpoint."""
    before = read_checkpoint(connection, projections.jobs)
    rows = connection.execute(
        select(EVENTS)
        .where(EVENTS.c.position > before.position)
        .order_by(EVENTS.c.position)
        .limit(CATCH_UP_EVENTS_MAX)
    ).all()
    if not rows:
        return before
    events = with_texts(connection, [event_of(row) for row in rows])
    fold_in(connection, projections, events)
    return Checkpoint(version=before.version, position=events[-1].position)


def clear(connection: Connection, projections: ProjectionSet) -> None:
    """Empty projections and delete their checkpoint."""
    for table in projections.tables:
        connection.execute(delete(table))
    connection.execute(delete(CHECKPOINTS).where(CHECKPOINTS.c.name == projections.jobs.name))
