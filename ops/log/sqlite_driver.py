"""SQLite: which library is in use, and engines whose commits survive a power cut.

Writers begin with ``BEGIN IMMEDIATE``. SQLite refuses a transaction that reads first and requests
the write lock later at once if another process holds the lock, whatever the busy timeout is.
Readers run single statements on connections of their own that refuse to write, so no reader keeps
a snapshot open that would stop the write-ahead log from being checkpointed.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import QueuePool

if TYPE_CHECKING:
    from sqlite3 import Connection as SqliteConnection

#: How long a connection waits for another process's write lock.
BUSY_TIMEOUT_MS = 10_000
#: The write-ahead log is truncated to this size after a checkpoint.
WAL_BYTES_MAX = 64 * 1024 * 1024

#: Page cache of a reading connection. SQLite's 2 MB would be 32 MB in a process with 16 of them;
#: the system's own cache has the pages (docs/benchmarks/soak.md has the cost).
READER_CACHE_KIB = 512

_READER_PRAGMAS = ("query_only = ON", f"cache_size = -{READER_CACHE_KIB}")
_WRITER_PRAGMAS = (
    "journal_mode = WAL",
    # NORMAL would lose the last commits in a power cut.
    "synchronous = FULL",
    f"journal_size_limit = {WAL_BYTES_MAX}",
    "foreign_keys = ON",
    # Without it, INSERT OR REPLACE deletes a row and no delete trigger fires.
    "recursive_triggers = ON",
    # Deleted texts are overwritten with zeros; other rows are hardly ever deleted.
    "secure_delete = ON",
    # On macOS only F_FULLFSYNC empties the drive's cache.
    *(("fullfsync = ON", "checkpoint_fullfsync = ON") if sys.platform == "darwin" else ()),
)

#: The first release without the WAL-reset corruption bug, and one that was withdrawn.
_WAL_RESET_FIXED = (3, 51, 3)
_WITHDRAWN = (3, 52, 0)
_READ_SCHEMA = "SELECT 1 FROM sqlite_master LIMIT 1"
_SCHEMA = text("SELECT type, name, tbl_name, sql FROM sqlite_master")
#: Group 1 is a quoted text or name, whose spaces count.
_QUOTED_OR_SPACE = re.compile(r"""('[^']*'|"[^"]*")|[ \t\n\v\f\r]+""")
#: Tables that SQLite itself keeps for its query planner.
_PLANNER = "sqlite_stat"


@dataclass(frozen=True, slots=True)
class SchemaEntry:
    """One table, index or trigger; ``sql`` is ``single_spaced``."""

    type: str
    name: str
    table: str
    sql: str


def driver_module() -> ModuleType:
    """Return the DB-API module: ``pysqlite3`` where its wheel is installed, else Python's own."""
    bundled = importlib.util.find_spec("pysqlite3") is not None
    return importlib.import_module("pysqlite3.dbapi2" if bundled else "sqlite3")


def sqlite_version() -> str:
    """Return the version of the SQLite library in use."""
    return str(driver_module().sqlite_version)


def has_wal_reset_fix(version: str) -> bool:
    """Whether a SQLite of this version is free of the WAL-reset corruption bug."""
    numbers = tuple(int(part) for part in version.split("."))
    return numbers >= _WAL_RESET_FIXED and numbers != _WITHDRAWN


def single_spaced(sql: str) -> str:
    """Return a statement with one space for each white space that has no meaning to SQLite."""
    return _QUOTED_OR_SPACE.sub(lambda found: found[1] or " ", sql).strip(" ")


def read_schema(connection: Connection) -> frozenset[SchemaEntry]:
    """Return all tables, indexes and triggers; a damaged file may have bytes for their texts."""
    found = ([str(value or "") for value in row] for row in connection.execute(_SCHEMA))
    return frozenset(
        SchemaEntry(kind, name, table, single_spaced(sql))
        for kind, name, table, sql in found
        if not name.startswith(_PLANNER)
    )


def sqlite_engine(url: str, *, writes: bool, connections: int, wait_max_s: float) -> Engine:
    """Return an engine whose connections refuse to write, or whose transactions hold the lock."""
    engine = create_engine(
        url,
        module=driver_module(),
        hide_parameters=True,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=wait_max_s,
        # The connection that was used last has the pages. With all in turn, the page cache of each
        # would fill: 2 MB for every connection that a peak has opened.
        pool_use_lifo=True,
    )
    pragmas = _WRITER_PRAGMAS if writes else _READER_PRAGMAS
    event.listen(engine, "connect", lambda connection, _: _prepare(connection, pragmas))
    if writes:
        event.listen(engine, "begin", lambda one: one.exec_driver_sql("BEGIN IMMEDIATE").close())
    return engine


def _prepare(connection: SqliteConnection, pragmas: Sequence[str]) -> None:
    # The driver begins no transactions of its own.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}").close()
    try:
        connection.execute(_READ_SCHEMA).close()
    except UnicodeDecodeError as error:
        # SQLite quotes damaged bytes of the schema in a message that the driver cannot decode.
        raise driver_module().DatabaseError("the schema of the database is damaged") from error
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}").close()
