"""SQLAlchemy engines on the log's database, for the driver that the URL names.

A log is a SQLite file (``sqlite_driver``) or a database of a PostgreSQL server
(``postgres_driver``). Both drivers keep the same rules: a writing transaction holds the write lock
of the whole log from its first statement on, and readers cannot write.

In this package an ``engine`` is one of ``reader_engine``. What uses the database or a file of the
log raises ``LogUnavailable`` where that cannot be read or written, and ``CorruptLog`` where an
event cannot be read. ``signed_hashes`` are those of signed checkpoints, by position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Select, make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlmodel import Session

from domain.errors import LogUnavailable
from ops.log.hot_statements import HotStatement
from ops.log.postgres_driver import postgres_engine
from ops.log.sqlite_driver import sqlite_engine

#: Connections of one process that read at once; the next reader waits.
READERS_MAX = 16
#: How long a caller waits for a connection of an engine.
CONNECTION_WAIT_MAX_S = 10.0

#: The message of SQLITE_FULL, which the bundled driver gives without its code.
_FULL = "database or disk is full"
#: ``disk_full`` of PostgreSQL.
_POSTGRES_FULL = "53100"


def is_sqlite(url: str) -> bool:
    """Whether the URL names a SQLite database."""
    return make_url(url).get_backend_name() == "sqlite"


def database_file(url: str) -> Path | None:
    """Return the file of a SQLite URL; ``None`` for a database server.

    Raises:
        ValueError: The URL names an in-memory database, of which each connection has its own.
    """
    if not is_sqlite(url):
        return None
    name = make_url(url).database
    if not name or name == ":memory:":
        raise ValueError("the event log needs a database file, not an in-memory database")
    return Path(name)


def writer_engine(url: str) -> Engine:
    """Return an engine with one connection, each of whose transactions holds the write lock.

    Raises:
        LogUnavailable: The driver of a database server is not installed.
        ValueError: The URL names an in-memory database.
    """
    return _engine(url, writes=True, connections=1)


def reader_engine(url: str) -> Engine:
    """Return an engine whose connections refuse to write; each statement has its own snapshot.

    It raises what ``writer_engine`` raises.
    """
    return _engine(url, writes=False, connections=READERS_MAX)


def _engine(url: str, *, writes: bool, connections: int) -> Engine:
    make = postgres_engine if database_file(url) is None else sqlite_engine
    return make(url, writes=writes, connections=connections, wait_max_s=CONNECTION_WAIT_MAX_S)


@contextmanager
def disposed(engine: Engine) -> Iterator[Engine]:
    """Close the connections of an engine at the end of the block."""
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def unavailable(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise ``LogUnavailable`` with a reason instead of errors of the database and of ``kinds``."""
    failures: tuple[type[Exception], ...] = (SQLAlchemyError, *kinds)
    try:
        yield
    except failures as error:
        raise LogUnavailable(f"{what}: {reason_of(error)}") from error


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Return a connection of a reader engine."""
    try:
        with unavailable("the event log cannot be read"), engine.connect() as connection:
            yield connection
    except (MemoryError, UnicodeDecodeError) as error:
        # The driver found an absurd size, or text that is none.
        msg = f"the event log cannot be read, its file is damaged: {error!r}"
        raise LogUnavailable(msg) from error


@contextmanager
def writing(engine: Engine, failure: str) -> Iterator[Connection]:
    """Open a transaction of a writer engine, which holds the write lock.

    Args:
        failure: What to report if the log cannot be written; nothing has changed then.
    """
    with unavailable(failure), engine.begin() as connection:
        yield connection


def read_pages(
    engine: Engine, query: Select[Any], key: ColumnElement[Any], *, rows_max: int, after: int | str
) -> Iterator[Sequence[Any]]:
    """Yield the rows of a query page by page; small statements keep no snapshot open for long.

    Args:
        query: Its first column is ``key``.
        key: Orders the rows, which have different values of it.
        after: Below the first key.
    """
    while True:
        page = query.where(key > after).order_by(key).limit(rows_max)
        with reading(engine) as connection:
            rows = connection.execute(page).all()
        if rows:
            yield rows
        if len(rows) < rows_max:
            return
        after = rows[-1][0]


@contextmanager
def reading_rows(engine: Engine) -> Iterator[Session]:
    """Return a session of a reader engine, whose queries return the rows of ``tables``."""
    with reading(engine) as connection, Session(connection) as session:
        yield session


def is_disk_full(error: Exception) -> bool:
    """Whether the database found no space for a write."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    return _FULL in str(cause) or getattr(cause, "sqlstate", None) == _POSTGRES_FULL


@contextmanager
def snapshot(engine: Engine) -> Iterator[Connection]:
    """Return a connection of a reader engine all of whose statements read one state.

    On SQLite the write-ahead log grows until the end of the block.
    """
    with reading(engine) as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN").close()
        else:
            connection.execution_options(isolation_level="REPEATABLE READ")
        yield connection


def reason_of(error: Exception) -> str:
    """Return the database's message, without the statement and its parameters."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    # PostgreSQL appends where in the statement the error is; its primary message leaves that out.
    diagnosis = getattr(cause, "diag", None)
    return " ".join(str(getattr(diagnosis, "message_primary", None) or cause).split())


class SqlViews:
    """Queries a log, each in a connection of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def _all(self, query: Select[Any]) -> Sequence[Any]:
        with reading(self._engine) as connection:
            return connection.execute(query).all()

    def _found(self, statement: HotStatement, **values: object) -> list[tuple[Any, ...]]:
        with reading(self._engine) as connection:
            return statement.rows(connection, values)
