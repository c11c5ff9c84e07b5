"""Verification finds changes of each part of a log, and changes at random places of each file."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from bench.tampering.run import TARGETS, Verdict, run
from bench.tampering.sample import LOG_NAME, record_sample, url_of
from domain.errors import CorruptLog, LogUnavailable, SemanticError
from domain.log.checkpoints import required_hashes
from ops.clock import SystemClock
from ops.log.admin.checkpoint_files import CheckpointFiles
from ops.log.admin.projections_check import ProjectionState
from ops.log.admin.verify import VerifiedLog, verify_whole_log
from ops.log.database import reader_engine, reading, writer_engine
from ops.log.migrate import current, upgrade
from ops.log.sql_event_log import open_log
from ops.log.sqlite_driver import driver_module
from tests.support.builders.log_files import fill
from tests.support.builders.log_stores import new_log_of

#: Of each run of the tests; ``python -m bench.tampering`` makes 10,000.
MUTATIONS = 30


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recorded") / "log"
    record_sample(directory, seed=1)
    with closing(driver_module().connect(str(directory / LOG_NAME))) as raw:
        raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return directory


def _verify(engine: Engine, url: str, heads: dict[int, str] | None = None) -> VerifiedLog:
    return verify_whole_log(engine, url, signed_hashes=heads or {})


def _verified(directory: Path) -> VerifiedLog:
    engine = reader_engine(url_of(directory))
    try:
        heads = required_hashes(CheckpointFiles.of(directory).read())
        return _verify(engine, url_of(directory), heads)
    finally:
        engine.dispose()


def _opened(directory: Path) -> None:
    open_log(url_of(directory), clock=SystemClock()).close()


def test_an_unchanged_log_verifies(recorded: Path) -> None:
    found = _verified(recorded)
    assert found.projections is ProjectionState.VERIFIED
    assert (found.archives.verified, found.archives.missing) == (1, ())


@pytest.mark.parametrize(
    ("change", "back", "reason"),
    [
        ("jobs SET status = status || ' '", "rtrim(status)", "table jobs"),
        ("jobs SET model_wanted_since = ''", "NULL", "table jobs"),
        ("jobs SET record = record || ' '", "rtrim(record)", "table jobs"),
        ("agents SET record = record || ' '", "rtrim(record)", "table agents"),
        ("usage_totals SET queue_us = queue_us + 1", "queue_us - 1", "table usage_totals"),
        ("webhooks SET record = record || ' '", "rtrim(record)", "webhook"),
        ("payloads SET bytes = bytes + 1", "bytes - 1", "not as it was written"),
        ("log_format SET version = version - 1", "version + 1", "needs reader"),
        ("log_format SET version = version + 1", "version - 1", "needs reader"),
        ("sqlite_sequence SET seq = seq + 1", "seq - 1", "number of the last event"),
    ],
)
def test_a_changed_value_is_found(recorded: Path, change: str, back: str, reason: str) -> None:
    with closing(driver_module().connect(str(recorded / LOG_NAME), isolation_level=None)) as raw:
        raw.execute(f"UPDATE {change}")
        with pytest.raises(SemanticError, match=reason):
            _verified(recorded)
        raw.execute(f"UPDATE {change.split('=', maxsplit=1)[0]} = {back}")
    _verified(recorded)


def test_a_missing_trigger_is_found(recorded: Path) -> None:
    with closing(driver_module().connect(str(recorded / LOG_NAME), isolation_level=None)) as raw:
        query = "SELECT sql FROM sqlite_master WHERE name = 'events_no_update'"
        ((sql,),) = raw.execute(query).fetchall()
        raw.execute("DROP TRIGGER events_no_update")
        with pytest.raises(CorruptLog, match="events_no_update"):
            _verified(recorded)
        raw.execute(sql)


@pytest.mark.parametrize("word", [b"TABLE jobs", b"TRIGGER events_no_update"])
def test_a_damaged_schema_is_a_typed_error(recorded: Path, tmp_path: Path, word: bytes) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(recorded, damaged)
    content = (damaged / LOG_NAME).read_bytes()
    assert word in content
    (damaged / LOG_NAME).write_bytes(content.replace(word, b"\xff" + word[1:]))
    url = url_of(damaged)
    for read in (_verified, lambda _: current(url), lambda _: upgrade(url), _opened):
        with pytest.raises(SemanticError):
            read(damaged)


def test_a_schema_stored_as_bytes_is_a_typed_error(recorded: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(recorded, damaged)
    with closing(driver_module().connect(str(damaged / LOG_NAME), isolation_level=None)) as raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute("UPDATE sqlite_master SET sql = CAST(sql AS BLOB) WHERE name = 'usage_hours'")
    with pytest.raises(CorruptLog, match="usage_hours"):
        _verified(damaged)


def test_a_damaged_type_of_a_column_is_a_typed_error(recorded: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(recorded, damaged)
    content = (damaged / LOG_NAME).read_bytes()
    at = content.index(b"TEXT NOT NULL", content.index(b"CREATE TABLE jobs ("))
    (damaged / LOG_NAME).write_bytes(content[:at] + b"TEXT NO\xd4 NULL" + content[at + 13 :])
    with pytest.raises(LogUnavailable, match="its file is damaged: UnicodeDecodeError"):
        _verified(damaged)


def test_an_absurd_size_in_the_file_is_a_typed_error(recorded: Path) -> None:
    engine = reader_engine(url_of(recorded))
    with pytest.raises(LogUnavailable, match="damaged: MemoryError"), reading(engine):
        raise MemoryError  # as SQLite's driver does
    engine.dispose()


def test_a_deleted_event_that_the_archiving_kept_is_found(recorded: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(recorded, damaged)
    with closing(driver_module().connect(str(damaged / LOG_NAME), isolation_level=None)) as raw:
        query = "SELECT sql FROM sqlite_master WHERE name = 'events_no_delete'"
        ((sql,),) = raw.execute(query).fetchall()
        raw.execute("DROP TRIGGER events_no_delete")
        kept = raw.execute(
            "SELECT position FROM events, (SELECT max(last_position) AS last FROM archives)"
            " WHERE position <= last AND stream GLOB 'agent-*' ORDER BY position"
        ).fetchall()
        # Later events of the same type and stream are in the log.
        assert kept
        raw.execute("DELETE FROM events WHERE position = ?", kept[0])
        raw.execute(sql)
    with pytest.raises(CorruptLog, match="the log lacks it"):
        _verified(damaged)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_log_of(request, tmp_path)


def test_projections_are_compared_with_the_events(url: str) -> None:
    with open_log(url, clock=SystemClock()) as log:
        fill(log, 3)
    engine = reader_engine(url)
    assert _verify(engine, url).projections is ProjectionState.VERIFIED
    changes = {
        "UPDATE jobs SET model = 'another' WHERE id = 'job-1'": "table jobs .* 'job-1'",
        "DELETE FROM jobs WHERE id = 'job-1'": "table jobs .* 'job-1'",
    }
    for change, reason in changes.items():
        writer = writer_engine(url)
        with writer.begin() as connection:
            connection.execute(text(change))
        writer.dispose()
        with pytest.raises(CorruptLog, match=reason):
            _verify(engine, url)
    engine.dispose()


def test_changes_at_random_places_are_found() -> None:
    changes = list(run(MUTATIONS, seed=2))
    assert {change.target for change in changes} >= TARGETS.keys() - {"key", "last head"}
    bad = {Verdict.MISSED, Verdict.CRASHED}
    assert [change for change in changes if change.judgement.verdict in bad] == []
    assert any(change.judgement.verdict is Verdict.FOUND for change in changes)
