"""How far the projections have read the log; one checkpoint for all, since they move together."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, Table, bindparam, delete, insert, select, update

from domain.errors import LogUnavailable
from ops.adapters.event_log.database import reading
from ops.adapters.event_log.hot_statements import HotStatement
from ops.adapters.event_log.row_codec import read_head
from ops.adapters.event_log.tables import CHECKPOINTS, JOBS

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


def delete_checkpoint(connection: Connection, jobs: Table) -> None:
    """Delete the checkpoint of the projections with the jobs in ``jobs``."""
    connection.execute(delete(CHECKPOINTS).where(CHECKPOINTS.c.name == jobs.name))
