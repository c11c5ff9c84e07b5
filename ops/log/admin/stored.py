"""How much a data directory stores, and the settings of a log's PostgreSQL server."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Integer, cast, func, select

from ops.log.archives import DIRECTORY
from ops.log.database import database_file, disposed, reader_engine, reading
from ops.log.migrate import current, expected
from ops.log.postgres_driver import SERVER_MIN
from ops.log.tables import PAYLOADS


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBytes:
    """Sizes in bytes.

    Attributes:
        texts: Requests, answers and files in the log.
        log: The database with them; 0 for PostgreSQL.
    """

    texts: int
    log: int
    archives: int
    broker: int
    cache: int


def measure_stored(data_dir: Path, cache_dir: Path, url: str) -> StoredBytes:
    """Measure what is stored."""
    with disposed(reader_engine(url)) as engine, reading(engine) as connection:
        texts = int(connection.scalar(select(func.sum(PAYLOADS.c.bytes))) or 0)
    file = database_file(url)
    parts = [] if file is None else [file, file.with_name(f"{file.name}-wal")]
    return StoredBytes(
        texts=texts,
        log=sum(part.stat().st_size for part in parts if part.exists()),
        archives=0 if file is None else _size_of(file.parent / DIRECTORY),
        broker=_size_of(data_dir / "broker"),
        cache=_size_of(cache_dir),
    )


def _size_of(directory: Path) -> int:
    """Return the size of all files below a directory; files that disappear count as empty."""
    total = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118 - of many files
            except FileNotFoundError:
                continue
    return total


_STATE = select(
    func.current_setting("server_version"),
    cast(func.current_setting("server_version_num"), Integer),
    func.current_setting("server_encoding"),
    func.current_setting("fsync"),
    func.current_setting("full_page_writes"),
    func.pg_is_in_recovery(),
    func.has_schema_privilege(func.current_schema(), "CREATE"),
)
_VERSION_UNIT = 10_000


@dataclass(frozen=True, slots=True)
class ServerReport:
    """The state of a server.

    Attributes:
        version: In the server's own spelling.
        faults: Reasons why the log cannot be kept there.
        risks: Settings that may lose commits, and releases that are not tested.
    """

    version: str
    faults: tuple[str, ...]
    risks: tuple[str, ...]


def report_server(url: str) -> ServerReport:
    """Query the server of a log.

    Raises:
        LogUnavailable: The server does not answer, or its driver is not installed.
    """
    schema = current(url)
    with disposed(reader_engine(url)) as engine, reading(engine) as connection:
        state = connection.execute(_STATE).one()
    version, number, encoding, fsync, full_pages, is_standby, may_create = state
    faults = {
        f"the database is in {encoding}, it must be in UTF8": encoding != "UTF8",
        "it is a standby, which cannot be written": is_standby,
        "this user may not create the tables": schema != expected() and not may_create,
    }
    risks = {
        f"older than {SERVER_MIN}, which is the oldest that is tested": number
        < SERVER_MIN * _VERSION_UNIT,
        "fsync is off: a crash of its machine loses the log": fsync == "off",
        "full_page_writes is off: a crash of its machine may break the log": full_pages == "off",
    }
    return ServerReport(
        version=str(version),
        faults=tuple(what for what, is_so in faults.items() if is_so),
        risks=tuple(what for what, is_so in risks.items() if is_so),
    )
