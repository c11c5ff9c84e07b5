from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from domain.errors import ConcurrencyConflict, LogUnavailable, PayloadMissing
from domain.log.record import Append
from domain.values import JobId, StreamName, digest_of
from ops.clock import SystemClock
from ops.log import writer as log_writer
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.log.transaction import LogTransaction
from ops.log.writer import LogWriter
from tests.support.builders.job_events import TEXTS, draft, started, submitted, worker_event
from tests.support.builders.log_files import new_log, raw_connection, verify
from tests.support.fakes.time import FakeClock
from tests.support.polling import scaled, wait_until

JOB = StreamName("job-1")
WORKER = StreamName("worker-1")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return new_log(tmp_path)


@pytest.fixture
def log(url: str) -> Iterator[SqlEventLog]:
    with open_log(url, clock=SystemClock()) as opened:
        yield opened


@pytest.fixture
def raw(url: str) -> Iterator[Any]:
    """A connection of somebody who knows nothing of our rules."""
    with closing(raw_connection(url)) as connection:
        yield connection


# --- many writers --------------------------------------------------------------------------


def _spawn(url: str, prefix: str, count: int) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tests.support.processes.log_appender",
        url,
        prefix,
        str(count),
    ]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_instants_never_step_back_over_writers_restarts_and_jumps_of_a_clock(url: str) -> None:
    ten_years_s = 10 * 365 * 86_400.0
    ahead, behind = FakeClock(), FakeClock()
    ahead.advance(3600)
    with open_log(url, clock=ahead) as first, open_log(url, clock=behind) as second:
        for log, name in ((first, "a"), (second, "b"), (first, "c")):
            log.append(StreamName(f"worker-{name}"), [draft(worker_event())], expected_version=0)
        behind.advance(ten_years_s)
        second.append(StreamName("worker-d"), [draft(worker_event())], expected_version=0)
    with open_log(url, clock=FakeClock()) as log:
        log.append(StreamName("worker-e"), [draft(worker_event())], expected_version=0)
        instants = [event.recorded_at for event in log.select()]
    assert instants == [*["2026-01-01T01:00:00.000000Z"] * 3, *["2035-12-30T00:00:00.000000Z"] * 2]
    assert verify(url)


def test_processes_that_append_at_once_form_one_chain(url: str) -> None:
    writers = [_spawn(url, prefix, 40) for prefix in ("a", "b")]
    for writer in writers:
        out, _ = writer.communicate(timeout=scaled(100))
        assert writer.returncode == 0
        assert len(out.splitlines()) == 40

    with open_log(url, clock=SystemClock()) as log:
        assert verify(url) == log.head()
        assert log.head().position == 160
        assert len(log.views.unfinished()) == 80


def test_a_killed_writer_leaves_a_whole_log_with_all_that_it_had_acknowledged(url: str) -> None:
    writer = _spawn(url, "a", 1_000_000)
    assert writer.stdout is not None
    with writer.stdout as said:
        for _ in range(20):
            said.readline()
        writer.kill()
        # Through the same file: lines that came with the twentieth wait in its buffer.
        acknowledged = 20 + said.read().count("\n")
    writer.wait(scaled(30))

    with open_log(url, clock=SystemClock()) as log:
        assert verify(url) == log.head()
        jobs = len(log.views.unfinished())
        assert acknowledged <= jobs <= acknowledged + 1
        assert log.head().position == 2 * jobs
        for number in range(jobs):
            assert log.get(digest_of(f"a {number}".encode()))


def test_appends_that_wait_share_a_commit(
    log: SqlEventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, release = threading.Event(), threading.Event()
    write = LogTransaction.write

    def slow_first(transaction: LogTransaction) -> None:
        if not entered.is_set():
            entered.set()
            assert release.wait(scaled(30))
        write(transaction)

    monkeypatch.setattr(LogTransaction, "write", slow_first)
    with ThreadPoolExecutor(21) as pool:
        first = pool.submit(log.append, WORKER, [draft(worker_event())], expected_version=0)
        assert entered.wait(scaled(30))
        others = [
            pool.submit(
                log.append,
                StreamName(f"worker-o{number}"),
                [draft(worker_event())],
                expected_version=0,
            )
            for number in range(19)
        ]
        clash = pool.submit(log.append, WORKER, [draft(worker_event())], expected_version=0)
        wait_until(lambda: len(log._writer._inbox) == 20)
        release.set()
        first.result(scaled(30))
        assert [one.result(scaled(30))[0].version for one in others] == [1] * 19
        assert isinstance(clash.exception(scaled(30)), ConcurrencyConflict)
    assert log.figures()["log_commit_duration_seconds"]["+Inf"] == 2
    assert log.head().position == 20


def test_an_append_that_cannot_be_stored_fails_alone(log: SqlEventLog) -> None:
    results = log._writer._write(
        [_append("worker-a"), _append("worker-\ud800"), _append("worker-b")]
    )
    assert [isinstance(result, Exception) for result in results] == [False, True, False]
    assert log.head().position == 2


def _append(stream: str) -> Append:
    return Append(stream=StreamName(stream), drafts=(draft(worker_event()),), expected_version=0)


# --- trouble -------------------------------------------------------------------------------


def test_a_full_disk_refuses_the_append_whole_and_the_log_recovers(log: SqlEventLog) -> None:
    log.append(JOB, [draft(submitted())], expected_version=0)
    before = log.head()
    _limit_pages(log, extra=2)
    payload = bytes(1_000_000)

    with pytest.raises(LogUnavailable, match="full") as caught:
        log.append(
            JOB, [draft(started())], expected_version=1, payloads={digest_of(payload): payload}
        )
    assert "INSERT" not in caught.value.message  # callers see this; the data is not theirs
    assert log.head() == before
    with pytest.raises(PayloadMissing):
        log.get(digest_of(payload))

    _limit_pages(log, extra=10_000)
    log.append(JOB, [draft(started())], expected_version=1, payloads={digest_of(payload): payload})
    assert log.head().position == 2
    assert log.get(digest_of(payload)) == payload


def _limit_pages(log: SqlEventLog, *, extra: int) -> None:
    """Let the database grow by so many pages and no more; the writer has one connection."""
    with log._writer._engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + extra}")


def _a_commit_begins(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An empty inbox says nothing: the append may not have reached it yet. This does."""
    begun = threading.Event()
    commit = LogWriter._commit

    def noting(writer: LogWriter, batch: list[Any]) -> None:
        begun.set()
        commit(writer, batch)

    monkeypatch.setattr(LogWriter, "_commit", noting)
    return begun


def test_a_lock_that_is_held_too_long_refuses_the_append_and_the_log_recovers(
    log: SqlEventLog, raw: Any
) -> None:
    with log._writer._engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA busy_timeout = 50")
    raw.execute("BEGIN IMMEDIATE")
    with pytest.raises(LogUnavailable, match="locked"):
        log.append(WORKER, [draft(worker_event())], expected_version=0)
    assert "locked" in str(log._writer.recent_failure())
    raw.execute("ROLLBACK")
    log.append(WORKER, [draft(worker_event())], expected_version=0)
    assert log._writer.recent_failure() is None
    figures = log._writer.figures()
    assert figures["log_write_failures_total"] == {"": 1}
    assert figures["log_commit_duration_seconds"]["+Inf"] == 1


def test_more_waiting_appends_than_the_limit_are_refused(
    log: SqlEventLog, monkeypatch: pytest.MonkeyPatch, raw: Any
) -> None:
    monkeypatch.setattr(log_writer, "WAITING_APPENDS_MAX", 2)
    raw.execute("BEGIN IMMEDIATE")  # the writer waits for this lock
    with ThreadPoolExecutor(3) as pool:
        taken = _a_commit_begins(monkeypatch)
        held = pool.submit(log.append, WORKER, [draft(worker_event())], expected_version=0)
        assert taken.wait(scaled(30))
        waiting = [
            pool.submit(log.append, StreamName(name), [draft(worker_event())], expected_version=0)
            for name in ("worker-2", "worker-3")
        ]
        wait_until(lambda: len(log._writer._inbox) == 2)
        with pytest.raises(LogUnavailable, match="waiting"):
            log.append(StreamName("worker-4"), [draft(worker_event())], expected_version=0)
        raw.execute("ROLLBACK")
        for one in (held, *waiting):
            assert one.result(scaled(30))
    assert log.head().position == 3


def test_more_waiting_bytes_than_the_limit_are_refused(
    log: SqlEventLog, monkeypatch: pytest.MonkeyPatch, raw: Any
) -> None:
    monkeypatch.setattr(log_writer, "WAITING_BYTES_MAX", 1)
    raw.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(2) as pool:
        taken = _a_commit_begins(monkeypatch)
        held = pool.submit(log.append, WORKER, [draft(worker_event())], expected_version=0)
        assert taken.wait(scaled(30))
        # An append that waits alone is taken, whatever its size.
        big: dict[str, Any] = {"expected_version": 0, "payloads": TEXTS}
        alone = pool.submit(log.append, JOB, [draft(submitted())], **big)
        wait_until(lambda: len(log._writer._inbox) == 1)
        with pytest.raises(LogUnavailable, match="bytes are waiting"):
            log.append(StreamName("job-2"), [draft(submitted())], **big)
        raw.execute("ROLLBACK")
        assert held.result(scaled(30))
        assert alone.result(scaled(30))


def test_an_append_without_a_turn_is_withdrawn_and_never_written(
    log: SqlEventLog, monkeypatch: pytest.MonkeyPatch, raw: Any
) -> None:
    raw.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(1) as pool:
        taken = _a_commit_begins(monkeypatch)
        held = pool.submit(log.append, WORKER, [draft(worker_event())], expected_version=0)
        assert taken.wait(scaled(30))
        with monkeypatch.context() as at_once:
            at_once.setattr(log_writer, "TURN_WAIT_MAX_S", 0.0)
            with pytest.raises(LogUnavailable, match="no turn to write"):
                log.append(StreamName("worker-2"), [draft(worker_event())], expected_version=0)
        raw.execute("ROLLBACK")
        assert held.result(scaled(30))
    log.append(StreamName("worker-3"), [draft(worker_event())], expected_version=0)
    assert log.load(StreamName("worker-2")) == ()


def test_a_commit_that_does_not_return_is_an_error_and_may_succeed_later(
    log: SqlEventLog, monkeypatch: pytest.MonkeyPatch, raw: Any
) -> None:
    raw.execute("BEGIN IMMEDIATE")
    taken = _a_commit_begins(monkeypatch)
    monkeypatch.setattr(log_writer, "COMMIT_WAIT_MAX_S", 0.0)
    real = log._writer._enqueue

    def queue(request: Append) -> Any:
        future = real(request)
        assert taken.wait(scaled(30))
        monkeypatch.setattr(log_writer, "TURN_WAIT_MAX_S", 0.0)
        return future

    monkeypatch.setattr(log._writer, "_enqueue", queue)
    with pytest.raises(LogUnavailable, match="has not answered"):
        log.append(WORKER, [draft(worker_event())], expected_version=0)
    raw.execute("ROLLBACK")
    assert wait_until(lambda: log.load(WORKER))


def test_close_writes_what_was_accepted_and_refuses_what_comes_after(
    url: str, monkeypatch: pytest.MonkeyPatch, raw: Any
) -> None:
    log = open_log(url, clock=SystemClock())
    raw.execute("BEGIN IMMEDIATE")
    with ThreadPoolExecutor(2) as pool:
        taken = _a_commit_begins(monkeypatch)
        accepted = pool.submit(log.append, WORKER, [draft(worker_event())], expected_version=0)
        assert taken.wait(scaled(30))
        closing = pool.submit(log.close)
        wait_until(lambda: log._writer._closed)
        raw.execute("ROLLBACK")
        assert accepted.result(scaled(30))
        closing.result(scaled(30))
    with pytest.raises(LogUnavailable, match="closed"):
        log.append(WORKER, [draft(worker_event())], expected_version=1)
    assert verify(url).position == 1


def test_a_clock_that_goes_back_does_not_reorder_events(url: str) -> None:
    clock = FakeClock()
    clock.advance(100)
    with open_log(url, clock=clock) as log:
        (first,) = log.append(WORKER, [draft(worker_event())], expected_version=0)
        clock.advance(-50)
        (second,) = log.append(WORKER, [draft(worker_event())], expected_version=1)
    assert second.recorded_at == first.recorded_at


def test_events_of_a_job_and_its_row_are_committed_together(
    log: SqlEventLog, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append(JOB, [draft(submitted())], expected_version=0)
    states: list[Any] = []
    write = LogTransaction.write

    def look() -> None:
        with closing(raw_connection(url)) as raw:
            states.extend(
                raw.execute(
                    "SELECT status, json_extract(record, '$.position'),"
                    " (SELECT position FROM checkpoints WHERE name = 'jobs'),"
                    " (SELECT max(position) FROM events) FROM jobs"
                )
            )

    def look_before_the_commit(transaction: LogTransaction) -> None:
        write(transaction)
        look()

    monkeypatch.setattr(LogTransaction, "write", look_before_the_commit)
    log.append(JOB, [draft(started())], expected_version=1)
    look()

    assert states == [("queued", 1, 1, 1), ("running", 2, 2, 2)]
    assert log.views.get(JobId(JOB)) is not None
