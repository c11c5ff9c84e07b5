"""PostgreSQL: engines that keep the same promises as those on a SQLite file.

A writing transaction first takes an advisory lock of its own, so the writers of all machines take
turns as they do on SQLite: positions have no gaps and commit in their order. A reader that polls
above the last position it has read misses no event.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from sqlalchemy import URL, Engine, create_engine, event, func, make_url, select

from domain.errors import LogUnavailable

if TYPE_CHECKING:
    from psycopg import Connection as PostgresConnection

#: Key of the advisory lock of writers: ``semantic`` in ASCII, as a signed 64-bit number.
WRITE_LOCK = 0x73656D616E746963
_LOCK = select(func.pg_advisory_xact_lock(WRITE_LOCK))
#: How long a transaction waits for the lock.
LOCK_TIMEOUT_MS = 10_000
#: After this the server ends the transaction of a writer that froze, and so frees its lock.
IDLE_IN_TRANSACTION_MAX_MS = 30_000
#: The oldest release that is tested and still maintained.
SERVER_MIN = 15

_OPTIONS = {
    "application_name": "semantic",
    "connect_timeout": 5,
    # A machine that is gone sends no reset; without these a client waits hours for its reply.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


def postgres_url(url: str) -> URL:
    """Return the URL with psycopg as its driver."""
    return make_url(url).set(drivername="postgresql+psycopg")


def postgres_engine(url: str, *, writes: bool, connections: int, wait_max_s: float) -> Engine:
    """Return an engine whose connections refuse to write, or whose transactions hold the lock.

    Raises:
        LogUnavailable: The driver is not installed.
    """
    if find_spec("psycopg") is None:
        raise LogUnavailable("a log on PostgreSQL needs psycopg: pip install 'psycopg[binary]'")
    engine = create_engine(
        postgres_url(url),
        # Each statement of a reader is its own snapshot. A stricter level would give a writer's
        # transaction a snapshot from before it got the lock.
        isolation_level="READ COMMITTED" if writes else "AUTOCOMMIT",
        connect_args=_OPTIONS,
        hide_parameters=True,
        pool_size=connections,
        max_overflow=0,
        pool_timeout=wait_max_s,
        # The server may have restarted since a connection was last used.
        pool_pre_ping=True,
    )
    event.listen(engine, "connect", _prepare_writer if writes else _prepare_reader)
    if writes:
        event.listen(engine, "begin", lambda connection: connection.execute(_LOCK).close())
    return engine


def _prepare_writer(connection: PostgresConnection, _record: object) -> None:
    _set(
        connection,
        lock_timeout=LOCK_TIMEOUT_MS,
        idle_in_transaction_session_timeout=IDLE_IN_TRANSACTION_MAX_MS,
    )
    # "off" would lose the last commits in a crash; stricter settings than "on" stay.
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
