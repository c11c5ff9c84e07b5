"""Compares the projections with a fold of the log.

The log is folded into tables of a scratch database, so the log is only read and a service may go on
writing. Then one snapshot of the log has the rows of both, up to the same position.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, create_engine, select, type_coerce
from sqlalchemy.types import NullType

from domain.errors import CorruptLog
from domain.events.worker import LogArchived
from domain.job.state import with_erased_texts
from domain.log.record import LogHead
from ops.log.archives import (
    archive_path,
    archived_stretch,
    read_anchor,
    read_archives,
)
from ops.log.database import disposed, reading, snapshot
from ops.log.projections.fold import (
    LIVE,
    fold_in,
    read_checkpoint,
)
from ops.log.projections.jobs import job_columns, job_of
from ops.log.projections.rebuild import Progress, pages_of
from ops.log.reader import LogReader
from ops.log.row_codec import event_of, read_head, with_texts
from ops.log.sqlite_driver import driver_module
from ops.log.tables import CHECKPOINTS, EVENTS, METADATA

#: Rows of a table compared at a time.
_PAGE_ROWS: Final = 1000
_ABSENT: Final = ()


class ProjectionState(StrEnum):
    """Whether the projections were compared, and why not."""

    VERIFIED = "verified"
    #: Another version of the program wrote them, or they lack events; the next start mends that.
    BEHIND = "behind"
    #: The file of an archive is missing, so the log cannot be folded from its beginning.
    ARCHIVE_MISSING = "archive_missing"


def verify_projections(
    engine: Engine, archives_of: str, *, progress: Progress | None = None
) -> ProjectionState:
    """Verify that each row of the projections is what the events lead to, and none is missing.

    Args:
        engine: From ``reader_engine``, on a log whose chain verifies.
        archives_of: URL of the log beside which the archives lie.

    Raises:
        CorruptLog: Naming the first table and row that differs.
    """
    while True:
        with reading(engine) as connection:
            archives, anchor = read_archives(connection), read_anchor(connection)
            checkpoint = read_checkpoint(connection, LIVE.jobs)
            head = read_head(connection).position
        if not checkpoint.is_current_version or checkpoint.position < min(head, anchor.position):
            return ProjectionState.BEHIND
        if any(not archive_path(archives_of, archive).exists() for archive in archives):
            return ProjectionState.ARCHIVE_MISSING
        with _scratch() as scratch:
            folded = _fold(engine, scratch, archives, archives_of, progress)
            state = _compared(engine, scratch, anchor, folded)
        if state is not None:
            return state
        # Another process archived events meanwhile.


@contextmanager
def _scratch() -> Iterator[Connection]:
    """Return a connection to empty projections in a file that is deleted afterwards."""
    with TemporaryDirectory(prefix="semantic-verify-") as directory:
        file = Path(directory) / "projections.sqlite3"
        made = create_engine(f"sqlite:///{file}", module=driver_module(), hide_parameters=True)
        with disposed(made) as engine, engine.connect() as connection:
            for pragma in ("journal_mode = OFF", "synchronous = OFF"):
                connection.exec_driver_sql(f"PRAGMA {pragma}").close()
            connection.commit()
            METADATA.create_all(connection, tables=[*LIVE.tables, CHECKPOINTS])
            yield connection


def _fold(
    engine: Engine,
    scratch: Connection,
    archives: Sequence[LogArchived],
    archives_of: str,
    progress: Progress | None,
) -> int:
    """Fold the events up to the checkpoint of the projections, and return its position."""
    with reading(engine) as connection:
        last = read_checkpoint(connection, LIVE.jobs).position
    after = archives[-1].last_position if archives else 0
    archived = itertools.chain.from_iterable(
        archived_stretch(engine, archives_of, archive) for archive in archives
    )
    rest = LogReader(engine).walk(after=after, through=last)
    for page in pages_of(itertools.chain(archived, rest)):
        fold_in(scratch, LIVE, page)
        if progress is not None:
            progress(page[-1].position, last)
    return last


def _compared(
    engine: Engine, scratch: Connection, anchor: LogHead, folded: int
) -> ProjectionState | None:
    """Compare the tables in one snapshot; ``None`` if events were archived since ``anchor``."""
    with snapshot(engine) as connection:
        if read_anchor(connection) != anchor:
            return None
        last, head = read_checkpoint(connection, LIVE.jobs).position, read_head(connection).position
        later = connection.execute(
            select(EVENTS)
            .where(EVENTS.c.position > folded, EVENTS.c.position <= last)
            .order_by(EVENTS.c.position)
        )
        for page in pages_of(event_of(row) for row in later):
            fold_in(scratch, LIVE, with_texts(connection, page))
        for table in LIVE.tables:
            _compare(connection, scratch, table)
        return ProjectionState.VERIFIED if last == head else ProjectionState.BEHIND


def _compare(connection: Connection, scratch: Connection, table: Table) -> None:
    is_server = connection.dialect.name != "sqlite"
    with closing(_rows(scratch, table)) as wanted, closing(_rows(connection, table)) as present:
        for folded, stored in itertools.zip_longest(wanted, present, fillvalue=_ABSENT):
            if _are_equal(folded, stored, is_server=is_server):
                continue
            erased = _as_erased(folded, stored) if table is LIVE.jobs else folded
            if not _are_equal(erased, stored, is_server=is_server):
                raise _differs(table, folded or stored)


def _as_erased(folded: tuple[Any, ...], stored: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the folded row of a job without the texts that were erased from the stored one.

    A later event of another stream may have stored the same text again, and a fold then finds it.
    """
    columns = [column.name for column in LIVE.jobs.columns]
    try:
        (wanted, present) = (
            job_of(str(dict(zip(columns, row, strict=True))["record"])) for row in (folded, stored)
        )
    except (KeyError, ValueError, TypeError, AttributeError):
        return folded  # the stored row is no job
    values = job_columns(with_erased_texts(wanted, present))
    return tuple(values[name] for name in columns)


def _differs(table: Table, row: Sequence[Any]) -> CorruptLog:
    columns = dict(zip((column.name for column in table.columns), row, strict=True))
    key = ", ".join(str(columns[column.name]) for column in table.primary_key.columns)
    position = columns.get("position", columns.get("accepted_position", 1))
    reason = f"the table {table.name} is not what the events lead to at {key!r}"
    return CorruptLog(
        position if isinstance(position, int) else 1, f"{reason}: semantic log upgrade --rebuild"
    )


def _rows(connection: Connection, table: Table) -> Generator[tuple[Any, ...], None, None]:
    """Yield the rows in the order of their key, with the values that the database has."""
    columns = [type_coerce(column, NullType()) for column in table.columns]
    query = select(*columns).order_by(*table.primary_key.columns)
    with connection.execute(query.execution_options(yield_per=_PAGE_ROWS)) as rows:
        for row in rows:
            yield tuple(row)


def _are_equal(folded: tuple[Any, ...], stored: tuple[Any, ...], *, is_server: bool) -> bool:
    if is_server:
        # PostgreSQL has no NUL in texts.
        folded = tuple(
            value.replace("\0", "\\x00") if isinstance(value, str) else value for value in folded
        )
        return folded == stored
    # 1 and 1.0 are equal and are not the same content.
    return folded == stored and list(map(type, folded)) == list(map(type, stored))
