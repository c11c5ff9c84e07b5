"""A log whose disk is full: what begins work is refused, ends are still recorded.

SQLite's own limit of pages stands for the disk; deleting the reserve raises it, as it frees space.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from domain.errors import DiskFull
from domain.events.event import Event
from domain.values import StreamName, digest_of
from ops.clock import SystemClock
from ops.data_dir.free_space import Reserve
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.log.transaction import LogTransaction
from tests.support.builders.job_events import completed, draft, started, submitted
from tests.support.builders.log_files import new_log, verify
from tests.support.polling import scaled, wait_until

#: Pages of the reserve, and bytes of a text that does not fit into pages that are left.
RESERVE_PAGES = 64
TEXT = b"x" * 50_000


@dataclass
class FullDisk:
    """The log on a disk that a test fills."""

    url: str
    reserve: Reserve
    is_full: bool = False
    _pages: int = field(default=0)

    def limit_pages(self, transaction: LogTransaction) -> None:
        connection = transaction._connection
        if not self.is_full:
            self._pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            most = 2**30
        else:
            most = self._pages + (0 if self.reserve.exists() else RESERVE_PAGES)
        connection.exec_driver_sql(f"PRAGMA max_page_count = {most}")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    disk = FullDisk(new_log(tmp_path), Reserve.beside(tmp_path / "events.sqlite3"))
    write: Callable[[LogTransaction], None] = LogTransaction.write

    def limited(transaction: LogTransaction) -> None:
        disk.limit_pages(transaction)
        write(transaction)

    monkeypatch.setattr(LogTransaction, "write", limited)
    assert disk.reserve.hold(4096)
    return disk


@pytest.fixture
def log(disk: FullDisk) -> Iterator[SqlEventLog]:
    with open_log(disk.url, clock=SystemClock()) as opened:
        yield opened


def _append(log: SqlEventLog, job: str, event: Event, version: int, text: bytes = TEXT) -> None:
    text = text + job.encode()
    payloads = {digest_of(text): text}
    log.append(StreamName(job), [draft(event)], expected_version=version, payloads=payloads)


def test_a_full_disk_records_ends_and_refuses_what_begins(disk: FullDisk, log: SqlEventLog) -> None:
    for job in ("job-1", "job-2"):
        _append(log, job, submitted(), 0, b"")
    _append(log, "job-1", started(), 1, b"")
    disk.is_full = True
    with pytest.raises(DiskFull, match="disk is full"):
        _append(log, "job-3", submitted(), 0)
    with pytest.raises(DiskFull):
        _append(log, "job-2", started(), 1)
    assert disk.reserve.exists(), "new work does not use the reserve"
    _append(log, "job-1", completed(), 2)
    assert not disk.reserve.exists()
    log.check_writable()
    with pytest.raises(DiskFull):
        _append(log, "job-3", submitted(), 0, 20 * TEXT)
    disk.is_full = False
    _append(log, "job-2", started(), 1)
    _append(log, "job-3", submitted(), 0)
    assert verify(disk.url) == log.head()
    assert log.head().position == 6


def test_an_end_does_not_share_the_fate_of_new_work_in_its_commit(
    disk: FullDisk, log: SqlEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    _append(log, "job-1", submitted(), 0, b"")
    _append(log, "job-1", started(), 1, b"")
    disk.is_full = True
    entered, release = threading.Event(), threading.Event()
    limited = LogTransaction.write

    def hold_first(transaction: LogTransaction) -> None:
        if not entered.is_set():
            entered.set()
            assert release.wait(scaled(30))
        limited(transaction)

    monkeypatch.setattr(LogTransaction, "write", hold_first)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(_append, log, "job-2", submitted(), 0, 3 * TEXT)
        assert entered.wait(scaled(30))
        second = pool.submit(_append, log, "job-3", submitted(), 0, 3 * TEXT)
        end = pool.submit(_append, log, "job-1", completed(), 2)
        wait_until(lambda: len(log._writer._inbox) >= 2)
        release.set()
        end.result(scaled(30))
        for refused in (first, second):
            with pytest.raises(DiskFull):
                refused.result(scaled(30))
    assert verify(disk.url).position == 3


def test_a_disk_that_stays_full_without_a_reserve_refuses_ends_as_unavailable(
    disk: FullDisk, log: SqlEventLog
) -> None:
    _append(log, "job-1", submitted(), 0, b"")
    _append(log, "job-1", started(), 1, b"")
    disk.is_full = True
    with pytest.raises(DiskFull):
        _append(log, "job-1", completed(), 2, 20 * TEXT)
    assert not disk.reserve.exists()
    disk.is_full = False
    _append(log, "job-1", completed(), 2, 20 * TEXT)
    assert verify(disk.url).position == 3


def test_the_floor_refuses_new_work_alone(disk: FullDisk) -> None:
    with open_log(disk.url, clock=SystemClock()) as log:
        _append(log, "job-1", submitted(), 0)

    def refuse(_events: object) -> None:
        raise DiskFull("no new work")

    with open_log(disk.url, clock=SystemClock()) as log:
        log.admit_work = refuse
        with pytest.raises(DiskFull, match="no new work"):
            _append(log, "job-2", submitted(), 0)
        _append(log, "job-1", started(), 1)
        _append(log, "job-1", completed(), 2)
        assert log.head().position == 3
