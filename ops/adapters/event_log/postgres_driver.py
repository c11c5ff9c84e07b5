"""Engines on a PostgreSQL server that keep the promises that the SQLite ones keep.

A writing transaction begins with an advisory lock of its own, so that writers of all machines take
turns as they do on SQLite: positions have no gaps, commit in their order, and whoever polls above
the last position that he saw misses nothing.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url

from domain.errors import LogUnavailable
from ops.adapters.event_log.hot_statements import run_text

if TYPE_CHECKING:
    from psycopg import Connection as PostgresConnection

#: What the transactions that write the log lock: ``semantic`` in ASCII, as a signed 64-bit number.
WRITE_LOCK = 0x73656D616E746963
#: How long a transaction waits for its turn.
LOCK_TIMEOUT_MS = 10_000
#: A writer that froze in the middle of a transaction loses it after this, and its lock with it.
IDLE_IN_TRANSACTION_MAX_MS = 30_000
#: Connections of one process that read at once; the next reader waits for ``READER_WAIT_MAX_S``.
READERS_MAX = 16
READER_WAIT_MAX_S = 10.0
#: The oldest release that is tested and still maintained.
SERVER_MIN = 15

_OPTIONS = {
    "application_name": "semantic",
    "connect_timeout": 5,
    # A server whose machine is gone says nothing; without these a reply would be awaited for hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def postgres_url(url: str) -> URL:
    """Return the URL with the driver that we use named in it."""
    return make_url(url).set(drivername="postgresql+psycopg")


def postgres_writer(url: str) -> Engine:
    """Return an engine with one connection, each of whose transactions holds the write lock.

    Raises:
        LogUnavailable: The driver is not installed.
    """
    # Under a stricter level a transaction would see the log as it was before it got the lock.
    engine = _engine(url, connections=1, isolation_level="READ COMMITTED")
    event.listen(engine, "connect", _prepare_writer)
    event.listen(engine, "begin", _take_write_lock)
    return engine


def postgres_reader(url: str) -> Engine:
    """Return an engine whose connections refuse to write; each statement is its own snapshot.

    Raises:
        LogUnavailable: The driver is not installed.
    """
    engine = _engine(url, connections=READERS_MAX, isolation_level="AUTOCOMMIT")
    event.listen(engine, "connect", _prepare_reader)
    return engine


def _engine(url: str, *, connections: int, isolation_level: Any) -> Engine:  # noqa: ANN401 - a literal of SQLAlchemy's
    if find_spec("psycopg") is None:
        msg = "a log on PostgreSQL needs psycopg: pip install 'semantic[postgres]'"
        raise LogUnavailable(msg)
    return create_engine(
        postgres_url(url),
        isolation_level=isolation_level,
        connect_args=_OPTIONS,
        hide_parameters=True,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=READER_WAIT_MAX_S,
        # The server may have been started anew since a connection was last used.
        pool_pre_ping=True,
    )


def _prepare_writer(connection: PostgresConnection, _record: object) -> None:
    _set(
        connection,
        lock_timeout=LOCK_TIMEOUT_MS,
        idle_in_transaction_session_timeout=IDLE_IN_TRANSACTION_MAX_MS,
    )
    # "off" would lose the last commits in a crash; what is stricter than "on" is left alone.
    connection.execute(
        "SELECT set_config('synchronous_commit', 'on', false)"
        " WHERE current_setting('synchronous_commit') = 'off'"
    ).close()
    connection.commit()


def _prepare_reader(connection: PostgresConnection, _record: object) -> None:
    _set(connection, default_transaction_read_only="on")


def _set(connection: PostgresConnection, **parameters: str | int) -> None:
    for name, value in parameters.items():
        connection.execute("SELECT set_config(%s, %s, false)", (name, str(value))).close()


def _take_write_lock(connection: Connection) -> None:
    run_text(connection, f"SELECT pg_advisory_xact_lock({WRITE_LOCK})")
