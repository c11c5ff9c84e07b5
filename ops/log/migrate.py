"""Upgrades the tables of the event log with Alembic; a log names the readers that it needs."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from sqlalchemy import Connection, bindparam, create_engine, inspect, select, text, update

from domain.errors import LogNewer
from domain.log.record import refuse_newer
from ops.data_dir.lock import DataDirLocked, DataLock
from ops.data_dir.permissions import make_directory
from ops.log.database import (
    database_file,
    disposed,
    reader_engine,
    reading,
    unavailable,
    writer_engine,
)
from ops.log.hot_statements import HotStatement
from ops.log.sqlite_driver import SchemaEntry, driver_module, read_schema
from ops.log.tables import LOG_FORMAT

READER_MIN: Final = "reader_min"
_READ = HotStatement(select(LOG_FORMAT.c.version).where(LOG_FORMAT.c.name == bindparam("row")))
_RAISE = HotStatement(
    update(LOG_FORMAT).where(LOG_FORMAT.c.name == bindparam("row")), columns=("version",)
)


def read_reader_min(connection: Connection) -> int:
    """Return the least reader version that a log of the present schema needs."""
    row = _READ.row(connection, {"row": READER_MIN})
    return 1 if row is None else int(row[0])


def raise_reader_min(connection: Connection, version: int) -> None:
    """Record that the log needs a newer reader from now on; the caller commits."""
    _RAISE.run(connection, {"row": READER_MIN, "version": version})


#: How long a process waits for another one that migrates the same file.
MIGRATION_WAIT_MAX_S = 60.0
_PACKAGE: Final = "migrations"
#: Alembic's own table, and its row with the revision of the schema.
_REVISION_TABLE: Final = "alembic_version"
_READ_REVISION = text(f"SELECT version_num FROM {_REVISION_TABLE}")  # noqa: S608 - a constant


def expected() -> str:
    """Return the schema revision that this code needs."""
    return _revisions()[-1]


def current(url: str) -> str | None:
    """Return the schema revision of the database; ``None`` if it has no tables yet."""
    file = database_file(url)
    if file is not None and not file.exists():
        return None
    with disposed(reader_engine(url)) as engine, reading(engine) as connection:
        return _revision(connection)


def refuse_newer_program(url: str) -> None:
    """Refuse a log of a schema or reader that is unknown here; one without tables is fine.

    Raises:
        LogNewer: A newer program, or one from before the first release, wrote to the log.
    """
    file = database_file(url)
    if file is not None and not file.exists():
        return
    with disposed(reader_engine(url)) as engine, reading(engine) as connection:
        _refuse_newer(connection)


def upgrade(url: str) -> str:
    """Create or upgrade the tables in one transaction; concurrent processes take turns.

    Returns:
        The new schema revision of the database.

    Raises:
        LogNewer: A newer program has upgraded the tables or written to the log.
    """
    file = database_file(url)
    with unavailable("the event log cannot be upgraded", OSError, DataDirLocked):
        if file is None:
            return _upgrade(url)
        make_directory(file.parent)
        # SQLite's own lock does not cover the switch of a new file to write-ahead logging.
        lock = DataLock(file.with_name(file.name + ".lock"))
        with lock.acquire_within(MIGRATION_WAIT_MAX_S):
            return _upgrade(url)


@cache
def made_tables(revision: str) -> frozenset[SchemaEntry]:
    """Return the tables, indexes and triggers that a SQLite log has at a schema revision."""
    memory = create_engine("sqlite://", module=driver_module())
    with disposed(memory) as engine, engine.begin() as connection:
        _run(connection, revision)
        return read_schema(connection)


def _upgrade(url: str) -> str:
    with disposed(writer_engine(url)) as engine, engine.begin() as connection:
        _refuse_newer(connection)
        if _revision(connection) != expected():
            _run(connection, "head")
    return expected()


def _run(connection: Connection, revision: str) -> None:
    """Run the migrations up to a revision."""
    from alembic import command  # noqa: PLC0415 - most starts find the newest schema
    from alembic.config import Config  # noqa: PLC0415 - most starts find the newest schema

    config = Config()
    config.set_main_option("script_location", f"{_PACKAGE}:")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _refuse_newer(connection: Connection) -> None:
    found = _revision(connection)
    if found is None:
        return
    if found not in _revisions():
        msg = (
            f"the event log has schema {found}, and this program knows up to {expected()}: a newer "
            "version of semantic upgraded it, or one from before the first release made it; "
            "update semantic, or choose another data directory"
        )
        raise LogNewer(msg)
    if inspect(connection).has_table(LOG_FORMAT.name):
        refuse_newer(read_reader_min(connection))


@cache
def _revisions() -> tuple[str, ...]:
    """Return the schema revisions that this program knows, the newest last.

    The name of each migration's file begins with its revision.
    """
    versions = files(_PACKAGE) / "versions"
    return tuple(
        sorted(
            file.name.partition("_")[0] for file in versions.iterdir() if file.name[:1].isdigit()
        )
    )


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_REVISION_TABLE):
        return None
    found = connection.execute(_READ_REVISION).scalar()
    return None if found is None else str(found)
