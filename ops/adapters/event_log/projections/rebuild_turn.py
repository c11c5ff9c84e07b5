"""One rebuild at a time: processes that open an outdated log together take turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from sqlalchemy import func, select

from domain.errors import LogUnavailable
from ops.adapters.data_dir.lock import DataDirLocked, DataLock
from ops.adapters.event_log.database import database_file, reader_engine

#: How long a process waits for the rebuild of another one.
REBUILD_WAIT_MAX_S: Final = 3600.0
_POLL_S: Final = 0.1
#: Key of the advisory lock on a server: ``rebuild`` in ASCII.
REBUILD_LOCK: Final = 0x72656275696C64


@contextmanager
def rebuild_turn(url: str) -> Iterator[None]:
    """Hold the lock of the log's rebuilds, which the system releases if this process dies.

    Raises:
        LogUnavailable: Another process rebuilds for too long, or the database cannot be read.
    """
    file = database_file(url)
    if file is None:
        engine = reader_engine(url)
        try:
            with engine.connect() as connection:
                take = select(func.pg_try_advisory_lock(REBUILD_LOCK))
                _wait_for(lambda: bool(connection.execute(take).scalar_one()))
                try:
                    yield
                finally:
                    connection.execute(select(func.pg_advisory_unlock(REBUILD_LOCK))).close()
        finally:
            engine.dispose()
        return
    lock = DataLock(file.with_name(file.name + ".rebuild"))
    _wait_for(lambda: _acquired(lock))
    try:
        yield
    finally:
        lock.release()


def _acquired(lock: DataLock) -> bool:
    try:
        lock.acquire()
    except DataDirLocked:
        return False
    return True


def _wait_for(take: Callable[[], bool]) -> None:
    deadline = time.monotonic() + REBUILD_WAIT_MAX_S
    while not take():
        if time.monotonic() > deadline:
            msg = f"another process has rebuilt the projections for {REBUILD_WAIT_MAX_S:.0f} s"
            raise LogUnavailable(msg)
        time.sleep(_POLL_S)
