"""A program refuses the log of a newer one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from typer.testing import CliRunner

from domain.errors import LogNewer
from domain.log import codec, record
from domain.log.codec import decode_event
from domain.values import StreamName
from ops.cli.main import build_app
from ops.cli.service.doctor import check_log_version
from ops.clock import SystemClock
from ops.exit_codes import ExitCode
from ops.log.admin.archive import open_as_of
from ops.log.admin.backup import back_up, restore
from ops.log.database import writer_engine
from ops.log.migrate import current, read_reader_min, upgrade
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import draft, worker_event
from tests.support.builders.log_files import fill, new_log, raw_connection
from tests.support.builders.log_stores import new_log_of
from tests.support.polling import scaled
from tests.support.processes.brokers import NO_REDIS_PATH

WORKER = StreamName("worker-1")

Release = Callable[[int], None]


@pytest.fixture
def release(monkeypatch: pytest.MonkeyPatch) -> Release:
    """Make this process the program of a release; release 2 adds a version of one event."""

    def be(reader: int) -> None:
        is_newer = reader > 1
        monkeypatch.setattr(record, "READER_VERSION", reader)
        monkeypatch.setattr(
            record, "READABLE_SINCE", {("WorkerDraining", 2): 2} if is_newer else {}
        )
        monkeypatch.setattr(codec, "SCHEMA_VERSIONS", {"WorkerDraining": 2} if is_newer else {})

    return be


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return new_log_of(request, tmp_path)


@pytest.fixture
def newer(tmp_path: Path, release: Release) -> str:
    """The log of release 2, in the process of release 1."""
    (tmp_path / "data").mkdir()
    url = new_log(tmp_path / "data")
    release(2)
    _append(url)
    release(1)
    return url


def _append(url: str) -> None:
    with open_log(url, clock=SystemClock()) as log:
        log.append(WORKER, [draft(worker_event())], expected_version=0)


def _reader_min(url: str) -> int:
    engine = writer_engine(url)
    with engine.connect() as connection:
        found = read_reader_min(connection)
    engine.dispose()
    return found


def test_the_first_event_that_older_programs_cannot_read_raises_the_version(
    url: str, release: Release
) -> None:
    release(2)
    with open_log(url, clock=SystemClock()) as log:
        fill(log, 1)
    assert _reader_min(url) == 1, "an older program may still read all of it"
    _append(url)
    assert _reader_min(url) == 2
    release(1)
    for refused in (upgrade, _opened, _opened_as_of):
        with pytest.raises(LogNewer, match=r"needs reader 2, this is reader 1"):
            refused(url)
    assert check_log_version(url).verdict == "fail"
    release(2)
    _opened(url)


def _opened(url: str) -> None:
    open_log(url, clock=SystemClock()).close()


def _opened_as_of(url: str) -> None:
    with open_as_of(url):
        pass


def test_a_running_program_stops_writing_when_a_newer_one_has_written(
    url: str, release: Release
) -> None:
    with open_log(url, clock=SystemClock()) as older:
        fill(older, 1)
        release(2)
        _append(url)
        release(1)
        with pytest.raises(LogNewer):
            older.append(StreamName("worker-2"), [draft(worker_event())], expected_version=0)
        assert older.head().position == 4


@pytest.mark.parametrize(
    ("schema", "advice"),
    [
        ("9999", "a newer version .* update semantic"),
        ("0013", "before the first release .*other data"),
    ],
)
def test_tables_of_an_unknown_schema_are_refused_unchanged(
    url: str, schema: str, advice: str
) -> None:
    engine = writer_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :new"), {"new": schema})
    engine.dispose()
    for refused in (upgrade, _opened, _opened_as_of):
        with pytest.raises(LogNewer, match=f"schema {schema}.* {advice}"):
            refused(url)
    assert current(url) == schema
    assert re.search(advice, check_log_version(url).detail)


@pytest.mark.parametrize(("name", "version"), [("JobSubmitted", 99), ("JobTeleported", 1)])
def test_an_event_of_a_newer_program_is_a_typed_error(name: str, version: int) -> None:
    with pytest.raises(LogNewer, match="newer program"):
        decode_event(name, version, {})


def test_commands_name_the_newer_program(newer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMANTIC_DATA_DIR", str(Path(newer.removeprefix("sqlite:///")).parent))
    app = build_app({"log"})
    for words in (["log", "ls"], ["log", "verify"], ["log", "upgrade"]):
        result = CliRunner().invoke(app, words)
        assert (result.exit_code, "update semantic" in result.output) == (78, True), words


def test_the_copy_of_a_newer_program_is_not_restored(
    newer: str, release: Release, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.sqlite3"
    release(2)
    back_up(newer, copy)
    release(1)
    (tmp_path / "other").mkdir()
    other = new_log(tmp_path / "other")
    with pytest.raises(LogNewer):
        restore(other, copy, kept_as="before")
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == [
        "events.sqlite3",
        "events.sqlite3.lock",
    ]


def _of_a_newer_program(url: str) -> None:
    with closing(raw_connection(url)) as raw:
        needed = record.READER_VERSION + 1
        raw.execute("UPDATE log_format SET version = ?", (needed,))


def _cut_off(url: str) -> None:
    with open_log(url, clock=SystemClock()) as log:
        fill(log, 1)
    with closing(raw_connection(url)) as raw:
        raw.execute("DROP TRIGGER events_no_delete")
        raw.execute("DELETE FROM events WHERE position = (SELECT max(position) FROM events)")


#: The words after ``python -m`` that start each part.
_STARTS = {
    "api": ["api.main"],
    "worker": ["worker.main"],
    "serve": ["ops.cli.main", "serve", "--port", "0"],
}


# By day each part meets one of the two.
@pytest.mark.parametrize(
    ("spoil", "code", "message", "names"),
    [
        (_of_a_newer_program, ExitCode.CONFIG, "update semantic", ["worker"]),
        (_cut_off, ExitCode.DAMAGED, "does not verify at position", ["api", "serve"]),
        *(
            pytest.param(*case, list(_STARTS), marks=pytest.mark.nightly)
            for case in (
                (_of_a_newer_program, ExitCode.CONFIG, "update semantic"),
                (_cut_off, ExitCode.DAMAGED, "does not verify at position"),
            )
        ),
    ],
)
def test_no_part_of_the_service_starts_again_and_again_on_an_unusable_log(
    tmp_path: Path, spoil: Callable[[str], None], code: ExitCode, message: str, names: list[str]
) -> None:
    spoil(new_log(tmp_path))
    environment = os.environ | {
        "SEMANTIC_DATA_DIR": str(tmp_path),
        "SEMANTIC_SERVER__PORT": "0",
        "PATH": NO_REDIS_PATH,
        "SEMANTIC_JOBS__WORKER_STANDBY": "false",
    }
    parts = {
        name: subprocess.Popen(
            [sys.executable, "-m", *_STARTS[name]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    }
    for name, part in parts.items():
        _, errors = part.communicate(timeout=scaled(200))
        assert part.returncode == code, (name, errors)
        assert message in errors, name
