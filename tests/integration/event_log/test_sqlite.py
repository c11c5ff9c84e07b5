from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from domain.errors import CorruptLog, LogNewer, LogUnavailable
from domain.values import StreamName
from ops.clock import SystemClock
from ops.log.database import reader_engine, writer_engine
from ops.log.migrate import current, expected, upgrade
from ops.log.sql_event_log import SqlEventLog, open_log
from ops.log.sqlite_driver import (
    READER_CACHE_KIB,
    driver_module,
    has_wal_reset_fix,
    single_spaced,
    sqlite_version,
)
from ops.log.tables import METADATA
from tests.support.builders.job_events import draft, submitted
from tests.support.builders.log_files import fill, new_log, raw_connection, verify
from tests.support.fakes.time import FakeClock
from tests.support.polling import scaled


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


# --- the library and the tables ------------------------------------------------------------


def test_the_sqlite_in_use_is_free_of_the_wal_reset_bug() -> None:
    if driver_module() is sqlite3:
        pytest.skip("no pysqlite3 wheel for this platform: Python's own SQLite is in use")
    assert has_wal_reset_fix(sqlite_version())


def test_page_caches_of_the_readers_are_small(url: str, log: SqlEventLog) -> None:
    del log
    engine = reader_engine(url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA cache_size").scalar_one() == -READER_CACHE_KIB
        assert connection.exec_driver_sql("PRAGMA query_only").scalar_one() == 1
    engine.dispose()


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CREATE TABLE a (\n\tb TEXT\v)\n", "CREATE TABLE a ( b TEXT )"),
        ("SELECT 'two  spaces'", "SELECT 'two  spaces'"),
        ('SELECT "a\tb"', 'SELECT "a\tb"'),
        ("SELECT\x1fb", "SELECT\x1fb"),
    ],
)
def test_spaces_between_words_are_made_single(sql: str, expected: str) -> None:
    assert single_spaced(sql) == expected


@pytest.mark.parametrize(
    ("version", "fixed"),
    [("3.40.1", False), ("3.51.2", False), ("3.51.3", True), ("3.52.0", False), ("3.53.0", True)],
)
def test_versions_with_the_wal_reset_fix_are_known(version: str, *, fixed: bool) -> None:
    assert has_wal_reset_fix(version) is fixed


def test_the_writer_commits_to_the_disk_and_readers_cannot_write(url: str) -> None:
    writer, reader = writer_engine(url), reader_engine(url)
    with writer.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
        for name in ("fullfsync", "checkpoint_fullfsync"):
            found = connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            assert found == (sys.platform == "darwin")
        assert connection.exec_driver_sql("PRAGMA recursive_triggers").scalar_one() == 1
    with reader.connect() as connection, pytest.raises(OperationalError, match="readonly"):
        connection.execute(text("DELETE FROM payloads"))
    writer.dispose()
    reader.dispose()


def test_the_migrations_create_the_tables_that_the_code_declares(url: str) -> None:
    engine = writer_engine(url)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, METADATA) == []
    engine.dispose()


def test_the_newest_schema_is_found_without_alembic() -> None:
    config = Config()
    config.set_main_option("script_location", "migrations:")
    config.set_main_option("path_separator", "os")
    newest_first = [
        (script.revision, Path(script.path).name)
        for script in ScriptDirectory.from_config(config).walk_revisions()
    ]
    assert newest_first == sorted(newest_first, reverse=True)
    assert newest_first[0][0] == expected()
    assert all(name.startswith(f"{revision}_") for revision, name in newest_first)


def test_a_second_upgrade_changes_nothing_and_needs_no_alembic(url: str) -> None:
    code = (
        "import sys; from ops.log.migrate import upgrade; "
        "print(upgrade(sys.argv[1]), 'alembic' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, url], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [expected(), "False"]
    assert current(url) == expected()


def test_processes_that_start_at_once_all_find_the_tables(tmp_path: Path) -> None:
    code = "import sys; from ops.log.migrate import upgrade; upgrade(sys.argv[1])"
    url = f"sqlite:///{tmp_path / 'new' / 'events.sqlite3'}"
    starts = [subprocess.Popen([sys.executable, "-c", code, url]) for _ in range(3)]
    assert [start.wait(scaled(60)) for start in starts] == [0, 0, 0]
    assert current(url) == expected()


def test_a_log_without_tables_is_not_opened(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'events.sqlite3'}"
    assert current(url) is None
    with pytest.raises(LogUnavailable, match="log upgrade"):
        open_log(url, clock=FakeClock())


def test_a_log_of_a_newer_program_is_left_alone(url: str, raw: Any) -> None:
    raw.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(LogNewer, match="a newer version"):
        upgrade(url)
    with pytest.raises(LogUnavailable):
        open_log(url, clock=FakeClock())


def test_an_in_memory_database_is_refused() -> None:
    with pytest.raises(ValueError, match="database file"):
        writer_engine("sqlite://")


# --- append-only ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET data = '{}' WHERE position = 2",
        "DELETE FROM events WHERE position = 3",
        "DELETE FROM events",
        "INSERT OR REPLACE INTO events SELECT * FROM events WHERE position = 2",
        (
            "INSERT OR REPLACE INTO events SELECT 4, stream, version, type, schema_version, data,"
            " 'other', correlation_id, causation_id, recorded_at, prev_hash, hash"
            " FROM events WHERE position = 2"
        ),
        (
            "INSERT OR REPLACE INTO events SELECT 4, stream, 9, type, schema_version, data,"
            " event_id, correlation_id, causation_id, recorded_at, prev_hash, hash"
            " FROM events WHERE position = 2"
        ),
        (
            "INSERT OR IGNORE INTO events SELECT 9, stream, 9, type, schema_version, data,"
            " 'other', correlation_id, causation_id, recorded_at, prev_hash, hash"
            " FROM events WHERE position = 2"
        ),
        (
            "INSERT INTO events SELECT * FROM events WHERE position = 2"
            " ON CONFLICT DO UPDATE SET data = '{}'"
        ),
    ],
)
def test_a_foreign_program_cannot_change_events(
    log: SqlEventLog, url: str, raw: Any, statement: str
) -> None:
    fill(log, jobs=1)
    before = raw.execute("SELECT * FROM events").fetchall()
    with pytest.raises(driver_module().IntegrityError, match="append-only"):
        raw.execute(statement)
    assert raw.execute("SELECT * FROM events").fetchall() == before
    assert verify(url) == log.head()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("data", '{"reason":"changed"}'),
        ("data", "no json"),
        ("data", b"\xff\xfe"),
        ("schema_version", 77),
        ("type", "JobFailed"),
        ("causation_id", "e"),
        ("recorded_at", "2020-01-01T00:00:00.000000Z"),
        ("correlation_id", "someone-else"),
        ("stream", "job-other"),
        ("event_id", b"\x00"),
        ("version", 77),
        ("prev_hash", "f" * 64),
        ("hash", "f" * 64),
        ("position", 99),
        ("position", 0),
    ],
)
def test_a_changed_event_is_named_byverify(
    log: SqlEventLog, url: str, raw: Any, column: str, value: Any
) -> None:
    fill(log)
    raw.execute("DROP TRIGGER events_no_update")
    raw.execute(f"UPDATE events SET {column} = ? WHERE position = 8", (value,))  # noqa: S608 - our own names
    with pytest.raises(CorruptLog) as caught:
        verify(url)
    # A moved event leaves its gap, and is found at the gap or at the place that cannot be.
    assert caught.value.position == {("position", 99): 9, ("position", 0): 0}.get(
        (column, value), 8
    )


@pytest.mark.parametrize("change", ["data || ' '", "' ' || data", "replace(data, ',', ', ')"])
def test_data_that_means_the_same_but_is_spelled_otherwise_is_named(
    log: SqlEventLog, url: str, raw: Any, change: str
) -> None:
    fill(log)
    raw.execute("DROP TRIGGER events_no_update")
    raw.execute(f"UPDATE events SET data = {change} WHERE position = 8")  # noqa: S608 - our own names
    with pytest.raises(CorruptLog, match="not as it was written") as caught:
        verify(url)
    assert caught.value.position == 8


def test_a_lone_surrogate_verifies_in_its_stored_form(log: SqlEventLog, url: str) -> None:
    log.append(StreamName("job-s"), [draft(submitted(model="\ud800 é"))], expected_version=0)
    fill(log, jobs=1)
    assert verify(url) == log.head()


def test_bytes_that_are_no_text_are_named_byverify(log: SqlEventLog, url: str, raw: Any) -> None:
    fill(log)
    raw.execute("DROP TRIGGER events_no_update")
    raw.execute("UPDATE events SET data = CAST(x'7bff7d' AS TEXT) WHERE position = 6")
    with pytest.raises(CorruptLog) as caught:
        verify(url)
    assert caught.value.position == 6


def test_the_earlier_of_two_changes_is_named(log: SqlEventLog, url: str, raw: Any) -> None:
    fill(log)
    raw.execute("DROP TRIGGER events_no_update")
    raw.execute("UPDATE events SET data = 'no json' WHERE position = 9")
    raw.execute("UPDATE events SET correlation_id = 'x' WHERE position = 4")
    with pytest.raises(CorruptLog) as caught:
        verify(url)
    assert caught.value.position == 4


@pytest.mark.parametrize("cut", [1, 8, 15])
def test_a_deleted_event_is_named_byverify(log: SqlEventLog, url: str, raw: Any, cut: int) -> None:
    fill(log)
    raw.execute("DROP TRIGGER events_no_delete")
    raw.execute("DELETE FROM events WHERE position = ?", (cut,))
    with pytest.raises(CorruptLog) as caught:
        verify(url)
    assert caught.value.position == cut + (0 if cut == 15 else 1)


def test_a_log_whose_end_was_cut_off_is_not_opened(url: str, raw: Any) -> None:
    with open_log(url, clock=SystemClock()) as log:
        fill(log)
    raw.execute("DROP TRIGGER events_no_delete")
    raw.execute("DELETE FROM events WHERE position > 12")
    with pytest.raises(CorruptLog) as caught:
        open_log(url, clock=SystemClock())
    assert caught.value.position == 13


def test_after_a_peak_one_connection_reads_and_the_others_rest(url: str) -> None:
    engine = reader_engine(url)
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(engine.connect())
    used = set()
    for _ in range(8):
        with engine.connect() as connection:
            used.add(id(connection.connection.dbapi_connection))
    assert len(used) == 1
    engine.dispose()
