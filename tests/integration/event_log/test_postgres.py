"""What only a database server can get wrong; the contracts run on it too."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from domain.errors import CorruptLog, LogUnavailable, PayloadMissing
from domain.events.job import JobCancelRequested
from domain.log.codec import texts_of
from domain.log.record import EventFilter
from domain.values import AgentId, JobId, StreamName
from ops.cli.service.doctor import check_log
from ops.clock import RandomIds, SystemClock
from ops.log import postgres_driver
from ops.log.admin.archive import archive_log
from ops.log.admin.backup import back_up
from ops.log.archives import each_event
from ops.log.database import reader_engine, writer_engine
from ops.log.erase.erase import erase_agent
from ops.log.migrate import current, expected, upgrade
from ops.log.projections.rebuild import rebuild_projections
from ops.log.reader import LogReader, follow
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.log.tables import METADATA
from tests.support.builders.job_events import completed, draft, started, submitted, worker_event
from tests.support.builders.log_files import fill, verify
from tests.support.polling import scaled
from tests.support.processes.postgres import PostgresServer

WORKER = StreamName("worker-1")


@pytest.fixture
def log(postgres_url: str) -> Iterator[SqlEventLog]:
    with open_log(postgres_url, clock=SystemClock()) as opened:
        yield opened


@pytest.fixture
def raw(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of somebody who knows nothing of our rules."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


# --- the tables ----------------------------------------------------------------------------


def test_the_migrations_create_the_tables_that_the_code_declares(postgres_url: str) -> None:
    engine = writer_engine(postgres_url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_every_text_is_compared_byte_by_byte(raw: psycopg.Connection[Any]) -> None:
    found = raw.execute(
        "SELECT table_name, column_name FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name <> 'alembic_version'"
        " AND data_type IN ('text', 'character varying') AND collation_name IS DISTINCT FROM 'C'"
    ).fetchall()
    assert found == []
    assert raw.execute("SELECT 'a' < 'B'").fetchone() == (True,), "the server's own rule is another"


def test_processes_that_start_at_once_all_find_the_tables(bare_postgres_url: str) -> None:
    assert current(bare_postgres_url) is None
    code = "import sys; from ops.log.migrate import upgrade; upgrade(sys.argv[1])"
    starts = [subprocess.Popen([sys.executable, "-c", code, bare_postgres_url]) for _ in range(3)]
    assert [start.wait(scaled(100)) for start in starts] == [0, 0, 0]
    assert upgrade(bare_postgres_url) == current(bare_postgres_url) == expected()


# --- the connections -----------------------------------------------------------------------


def test_writers_wait_for_the_disk_whatever_the_server_says(
    postgres: PostgresServer, postgres_url: str, raw: psycopg.Connection[Any]
) -> None:
    name = raw.info.dbname
    postgres.run(f"ALTER DATABASE {name} SET synchronous_commit = off")
    postgres.run(f"ALTER DATABASE {name} SET default_transaction_isolation = serializable")
    engine = writer_engine(postgres_url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
        level = connection.exec_driver_sql("SHOW transaction_isolation").scalar_one()
        assert level == "read committed"
    engine.dispose()


def test_a_stricter_commit_is_left_alone(
    postgres: PostgresServer, postgres_url: str, raw: psycopg.Connection[Any]
) -> None:
    postgres.run(f"ALTER DATABASE {raw.info.dbname} SET synchronous_commit = remote_apply")
    engine = writer_engine(postgres_url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "remote_apply"
    engine.dispose()


def test_readers_cannot_write(log: SqlEventLog, postgres_url: str) -> None:
    fill(log, jobs=1)
    engine = reader_engine(postgres_url)
    with engine.connect() as connection, pytest.raises(DBAPIError, match="read-only"):
        connection.execute(text("DELETE FROM payloads"))
    engine.dispose()


def test_without_the_driver_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_driver, "find_spec", lambda _: None)
    with pytest.raises(LogUnavailable, match=r"pip install 'psycopg\[binary\]'"):
        reader_engine("postgresql://host/log")


def test_a_server_that_is_not_there_is_a_log_that_is_not_there(tmp_path: Path) -> None:
    url = f"postgresql://user:secret@/log?host={tmp_path}"
    for call in (upgrade, current):
        with pytest.raises(LogUnavailable) as caught:
            call(url)
        assert "secret" not in caught.value.message


def test_a_log_is_written_and_read_on_after_the_server_crashed(
    postgres: PostgresServer, postgres_url: str, log: SqlEventLog
) -> None:
    fill(log, jobs=2)
    before = log.select()
    postgres.stop(signal.SIGQUIT)
    with pytest.raises(LogUnavailable):
        log.append(WORKER, [draft(worker_event())], expected_version=0)
    with pytest.raises(LogUnavailable):
        log.head()
    postgres.start()
    assert log.select() == before
    log.append(WORKER, [draft(worker_event())], expected_version=0)
    assert verify(postgres_url) == log.head()


def test_doctor_tells_what_a_log_on_the_server_depends_on(
    postgres_url: str,
    bare_postgres_url: str,
    raw: psycopg.Connection[Any],
    tmp_path: Path,
) -> None:
    found = check_log(postgres_url)
    # The server of these tests is a careless one.
    assert (found.name, found.verdict) == ("postgres", "warn")
    assert "fsync is off" in found.detail
    raw.execute("CREATE ROLE stranger LOGIN")
    try:
        stranger = bare_postgres_url.replace("semantic@", "stranger:secret@")
        found = check_log(stranger)
        assert found.verdict == "fail"
        assert "may not create" in found.detail
        assert "secret" not in found.detail
    finally:
        raw.execute("DROP ROLE stranger")
    assert check_log(f"postgresql://x@/log?host={tmp_path}").verdict == "fail"


# --- append-only ---------------------------------------------------------------------------

_COPY = (
    "INSERT INTO events SELECT {position}, {stream}, {version}, type, schema_version, data,"
    " {event_id}, correlation_id, causation_id, recorded_at, prev_hash, hash"
    " FROM events WHERE position = 2"
)
_AS_IT_IS = {"position": "4", "stream": "stream", "version": "9", "event_id": "'other'"}


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE events SET data = '{}' WHERE position = 2", "append-only: UPDATE"),
        ("UPDATE events SET data = '{}' WHERE position = 99", "append-only: UPDATE"),
        ("DELETE FROM events WHERE position = 3", "append-only: DELETE"),
        ("DELETE FROM events", "append-only: DELETE"),
        ("TRUNCATE events", "append-only: TRUNCATE"),
        ("TRUNCATE payloads, events RESTART IDENTITY CASCADE", "append-only: TRUNCATE"),
        (_COPY.format(**_AS_IT_IS | {"position": "5"}), "only the next new event"),
        (_COPY.format(**_AS_IT_IS | {"position": "3"}), "only the next new event"),
        (_COPY.format(**_AS_IT_IS | {"version": "version"}), "uq_events_stream_version"),
        (_COPY.format(**_AS_IT_IS | {"event_id": "event_id"}), "uq_events_event_id"),
        (
            _COPY.format(**_AS_IT_IS | {"event_id": "event_id"})
            + " ON CONFLICT (event_id) DO UPDATE SET data = '{}'",
            "append-only: UPDATE",
        ),
    ],
)
def test_a_foreign_program_cannot_change_events(
    log: SqlEventLog, postgres_url: str, raw: psycopg.Connection[Any], statement: str, why: str
) -> None:
    fill(log, jobs=1)
    before = raw.execute("SELECT * FROM events").fetchall()
    with pytest.raises(psycopg.IntegrityError, match=why):
        raw.execute(statement.encode())
    assert raw.execute("SELECT * FROM events").fetchall() == before
    assert verify(postgres_url) == log.head()


def test_a_changed_event_is_named_by_verify(
    log: SqlEventLog, postgres_url: str, raw: psycopg.Connection[Any]
) -> None:
    fill(log)
    raw.execute("ALTER TABLE events DISABLE TRIGGER events_no_change")
    raw.execute("UPDATE events SET data = data || ' ' WHERE position = 8")
    with pytest.raises(CorruptLog) as caught:
        verify(postgres_url)
    assert caught.value.position == 8


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


def test_processes_that_append_at_once_form_one_chain_that_a_follower_sees_whole(
    postgres_url: str,
) -> None:
    stopped = threading.Event()
    with open_log(postgres_url, clock=SystemClock()) as log, ThreadPoolExecutor(1) as pool:

        def read_all_new() -> list[int]:
            seen = []
            for event in follow(log, EventFilter(), after=0, stopped=stopped):
                seen.append(event.position)
                if len(seen) == 120:
                    break
            return seen

        following = pool.submit(read_all_new)
        try:
            writers = [_spawn(postgres_url, prefix, 20) for prefix in ("a", "b", "c")]
            for writer in writers:
                out, _ = writer.communicate(timeout=scaled(100))
                assert writer.returncode == 0
                assert len(out.splitlines()) == 20
            assert following.result(scaled(60)) == list(range(1, 121))
        finally:
            stopped.set()
        assert verify(postgres_url) == log.head()
        assert len(log.views.unfinished()) == 60


def test_a_killed_writer_leaves_a_whole_log_and_its_turn(
    log: SqlEventLog, postgres_url: str
) -> None:
    writer = _spawn(postgres_url, "a", 1_000_000)
    assert writer.stdout is not None
    for _ in range(10):
        writer.stdout.readline()
    writer.kill()
    # Not `communicate`: with a time limit it leaves out what `readline` has read ahead.
    with writer.stdout as acknowledgements:
        acknowledged = 10 + acknowledgements.read().count("\n")
    writer.wait(scaled(30))
    log.append(WORKER, [draft(worker_event())], expected_version=0)
    assert verify(postgres_url) == log.head()
    assert acknowledged <= len(log.views.unfinished()) <= acknowledged + 1


def test_a_writer_without_the_turn_in_time_gets_an_error(
    postgres_url: str, raw: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_driver, "LOCK_TIMEOUT_MS", 50)
    with open_log(postgres_url, clock=SystemClock()) as log:
        with raw.transaction():
            raw.execute(f"SELECT pg_advisory_xact_lock({postgres_driver.WRITE_LOCK})".encode())
            with pytest.raises(LogUnavailable, match="lock timeout"):
                log.append(WORKER, [draft(worker_event())], expected_version=0)
        log.append(WORKER, [draft(worker_event())], expected_version=0)
        assert log.head().position == 1


# --- what it says --------------------------------------------------------------------------


def test_a_text_with_a_nul_character_is_no_trouble(log: SqlEventLog, postgres_url: str) -> None:
    model = "a\0b \ud800 é"
    drafts = [draft(submitted(model=model)), draft(JobCancelRequested(reason=model))]
    events = log.append(StreamName("job-n"), drafts, expected_version=0)
    assert log.select() == events
    assert texts_of(log.select()[0]) == {"model": model}
    assert events[1].data["reason"] == model
    view = log.views.get(JobId("job-n"))
    assert view is not None
    assert view.submitted.model == "a\0b \\ud800 é"
    assert verify(postgres_url) == log.head()


def test_a_rebuild_makes_the_same_list_and_the_events_of_an_agent_are_found(
    log: SqlEventLog, postgres_url: str, raw: psycopg.Connection[Any]
) -> None:
    fill(log)
    mine = [draft(submitted(agent="ann")), draft(started()), draft(completed())]
    log.append(StreamName("job-ann"), mine, expected_version=0)
    good = log.views.page(limit=100)
    raw.execute("DELETE FROM jobs WHERE id = 'job-ann'")
    assert log.views.page(limit=100) != good
    assert rebuild_projections(postgres_url) == 18
    assert log.views.page(limit=100) == good
    engine = reader_engine(postgres_url)
    found = LogReader(engine).select_before(EventFilter(agent="ann"), before=None, limit=10)
    assert [event.position for event in found] == [16, 17, 18]
    assert len(list(each_event(engine, postgres_url))) == 18
    engine.dispose()


def test_what_only_a_file_can_do_is_refused_with_what_to_do_instead(
    log: SqlEventLog, postgres_url: str, tmp_path: Path
) -> None:
    fill(log, jobs=1)
    clock, ids = SystemClock(), RandomIds()
    with pytest.raises(LogUnavailable, match="pg_dump"):
        back_up(postgres_url, tmp_path / "copy")
    with pytest.raises(LogUnavailable, match="log ls --export"):
        archive_log(postgres_url, before="9999", clock=clock, ids=ids)
    assert log.head().position == 3


def test_the_texts_of_an_agent_are_erased_and_the_log_verifies(
    log: SqlEventLog, postgres_url: str
) -> None:
    secret = b"output"
    ended = completed()
    log.append(
        StreamName("job-ann"),
        [draft(submitted(agent="ann")), draft(started()), draft(ended)],
        expected_version=0,
        payloads={ended.output: secret},
    )
    assert log.get(ended.output) == secret
    erase_agent(postgres_url, AgentId("ann"), clock=SystemClock(), ids=RandomIds())
    with pytest.raises(PayloadMissing):
        log.get(ended.output)
    assert verify(postgres_url) == log.head()
