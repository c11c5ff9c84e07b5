"""Which SQLite library is in use, and engines on the log that do not lose a commit.

A log on a database server is handed to ``postgres_driver``; what follows is about files.

Writers begin with ``BEGIN IMMEDIATE``: a transaction that reads first and asks for the write lock
later is refused at once when another process holds it, whatever the busy timeout says. Readers run
single statements on connections of their own that refuse to write, so no reader holds a snapshot
open and stops the write-ahead log from being folded back.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import QueuePool

from ops.adapters.event_log.hot_statements import run_text
from ops.adapters.event_log.postgres_driver import postgres_reader, postgres_writer

if TYPE_CHECKING:
    from sqlite3 import Connection as SqliteConnection

#: How long a connection waits for another process's write lock.
BUSY_TIMEOUT_MS = 10_000
#: Connections that read at once; the next reader waits for ``READER_WAIT_MAX_S``.
READERS_MAX = 16
READER_WAIT_MAX_S = 10.0
#: The write-ahead log is cut back to this after a checkpoint.
WAL_BYTES_MAX = 64 * 1024 * 1024

#: The first release without the WAL-reset corruption bug, and one that was withdrawn.
_WAL_RESET_FIXED = (3, 51, 3)
_WITHDRAWN = (3, 52, 0)


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


def is_sqlite(url: str) -> bool:
    """Whether the URL names a SQLite database."""
    return make_url(url).get_backend_name() == "sqlite"


def database_file(url: str) -> Path | None:
    """Return the file of a SQLite URL; ``None`` for a database server.

    Raises:
        ValueError: If it is an in-memory database: its connections would not see each other.
    """
    if not is_sqlite(url):
        return None
    name = make_url(url).database
    if not name or name == ":memory:":
        msg = "the event log needs a database file, not an in-memory database"
        raise ValueError(msg)
    return Path(name)


def reason_of(error: Exception) -> str:
    """Return what the database said, without the statement and the data that it was about."""
    said = error.orig if isinstance(error, DBAPIError) else error
    # A server also says where in the statement; only what it says first is for people.
    diagnosis = getattr(said, "diag", None)
    return " ".join(str(getattr(diagnosis, "message_primary", None) or said).split())


def writer_engine(url: str) -> Engine:
    """Return an engine with one connection, each of whose transactions holds the write lock.

    Raises:
        LogUnavailable: The driver of a database server is not installed.
    """
    if not is_sqlite(url):
        return postgres_writer(url)
    engine = _sqlite_engine(url, connections=1)
    event.listen(engine, "connect", _prepare_writer)
    event.listen(engine, "begin", _begin_immediate)
    return engine


def reader_engine(url: str) -> Engine:
    """Return an engine whose connections refuse to write; each statement is its own snapshot.

    Raises:
        LogUnavailable: The driver of a database server is not installed.
    """
    if not is_sqlite(url):
        return postgres_reader(url)
    engine = _sqlite_engine(url, connections=READERS_MAX)
    event.listen(engine, "connect", _prepare_reader)
    return engine


def _sqlite_engine(url: str, *, connections: int) -> Engine:
    database_file(url)
    return create_engine(
        url,
        module=driver_module(),
        hide_parameters=True,
        poolclass=QueuePool,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=READER_WAIT_MAX_S,
    )


def _prepare_writer(connection: SqliteConnection, _record: object) -> None:
    _prepare(connection)
    pragmas = [
        "journal_mode = WAL",
        # NORMAL would lose the last commits in a power cut.
        "synchronous = FULL",
        f"journal_size_limit = {WAL_BYTES_MAX}",
        "foreign_keys = ON",
        # Without it, INSERT OR REPLACE deletes a row and no delete trigger fires.
        "recursive_triggers = ON",
    ]
    if sys.platform == "darwin":
        # Only F_FULLFSYNC reaches the platter there.
        pragmas += ["fullfsync = ON", "checkpoint_fullfsync = ON"]
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}").close()


def _prepare_reader(connection: SqliteConnection, _record: object) -> None:
    _prepare(connection)
    connection.execute("PRAGMA query_only = ON").close()


def _prepare(connection: SqliteConnection) -> None:
    # The driver's own idea of when a transaction begins is switched off.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}").close()


def _begin_immediate(connection: Connection) -> None:
    run_text(connection, "BEGIN IMMEDIATE")
