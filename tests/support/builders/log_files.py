"""Logs in files that belong to one test."""

from __future__ import annotations

import stat
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from domain.agent.agents import AgentRecords
from domain.log.record import LogHead
from domain.values import StreamName
from ops.clock import RandomIds
from ops.data_dir.permissions import make_directory
from ops.log.admin.verify import verify_log
from ops.log.database import database_file, reader_engine
from ops.log.migrate import upgrade
from ops.log.sql_event_log import SqlEventLog
from ops.log.sqlite_driver import driver_module
from tests.support.builders.job_events import TEXTS, completed, draft, started, submitted


def new_log(directory: Path) -> str:
    """Return the URL of a log with its tables; a new one is a copy of the first of the process."""
    if (directory / "events.sqlite3").exists():
        return _url(directory)
    make_directory(directory)
    for name, (content, mode) in _files_of_new_log().items():
        with (directory / name).open("xb") as file:
            file.write(content)
        (directory / name).chmod(mode)
    return _url(directory)


def _url(directory: Path) -> str:
    return f"sqlite:///{directory / 'events.sqlite3'}"


@cache
def _files_of_new_log() -> dict[str, tuple[bytes, int]]:
    """Return the content and the mode of each file that an upgrade leaves."""
    with tempfile.TemporaryDirectory() as name:
        upgrade(_url(Path(name)))
        return {
            file.name: (file.read_bytes(), stat.S_IMODE(file.stat().st_mode))
            for file in Path(name).iterdir()
        }


def raw_connection(url: str) -> Any:
    """Return a plain SQLite connection, as another program would open it."""
    return driver_module().connect(str(database_file(url)), isolation_level=None)


def verify(url: str) -> LogHead:
    """Verify the hash chain; raises ``CorruptLog``."""
    engine = reader_engine(url)
    try:
        return verify_log(engine)
    finally:
        engine.dispose()


def fill(log: SqlEventLog, jobs: int = 5) -> None:
    """Append three events for each job."""
    for number in range(jobs):
        log.append(
            StreamName(f"job-{number}"),
            [draft(submitted()), draft(started()), draft(completed())],
            expected_version=0,
            payloads=TEXTS,
        )


def agent_records(log: SqlEventLog) -> AgentRecords:
    """Return the agents of a log."""
    return AgentRecords(log=log, views=log.views, payloads=log, ids=RandomIds())
