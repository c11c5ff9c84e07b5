from __future__ import annotations

import shutil
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from domain.errors import CorruptLog, LogUnavailable
from domain.log.record import LogHead
from domain.values import StreamName
from ops.cli.main import build_app
from ops.clock import SystemClock
from ops.log.admin import backup
from ops.log.admin.backup import back_up, restore, verify_copy
from ops.log.admin.checkpoint_files import CheckpointFiles
from ops.log.database import database_file
from ops.log.sql_event_log import open_log
from ops.supervisor.serve_record import serve_lock
from tests.support.builders.job_events import draft, worker_event
from tests.support.builders.log_files import fill, new_log, raw_connection, verify
from tests.support.processes.killed import killed_at_every_step

WORKER = StreamName("worker-1")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SEMANTIC_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("SEMANTIC_LOG__URL", raising=False)
    (tmp_path / "data").mkdir()
    url = new_log(tmp_path / "data")
    with open_log(url, clock=SystemClock()) as log:
        fill(log)
    return url


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy.sqlite3"


def _run(*arguments: str) -> Result:
    app = build_app({"log"})
    return CliRunner().invoke(app, arguments)


def _grow(url: str, version: int = 0) -> LogHead:
    with open_log(url, clock=SystemClock()) as log:
        log.append(WORKER, [draft(worker_event())], expected_version=version)
        return log.head()


def test_a_copy_holds_what_was_there_and_comes_back(url: str, copy: Path) -> None:
    before = verify(url)
    result = _run("log", "backup", str(copy))
    assert result.exit_code == 0, result.output
    assert "15 events" in result.stdout
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    grown = _grow(url)

    result = _run("log", "restore", str(copy))
    assert result.exit_code == 0, result.output
    assert verify(url) == before
    (kept,) = Path(database_file(url) or "").parent.glob("*before-restore*")
    assert verify(f"sqlite:///{kept}") == grown
    assert _grow(url).position == 16


def test_a_log_is_copied_while_it_is_written_to(url: str, copy: Path) -> None:
    stop = threading.Event()
    with open_log(url, clock=SystemClock()) as log:

        def write() -> None:
            version = 0
            while not stop.is_set():
                log.append(WORKER, [draft(worker_event())], expected_version=version)
                version += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            heads = [back_up(url, copy.with_name(f"copy-{number}")) for number in range(3)]
        finally:
            stop.set()
            writer.join()
        for number, head in enumerate(heads):
            assert verify_copy(copy.with_name(f"copy-{number}")) == head
            (event,) = log.select(after=head.position - 1, limit=1)
            assert event.hash == head.hash


def test_a_file_that_is_there_is_not_written_over(url: str, copy: Path) -> None:
    copy.write_text("precious")
    with pytest.raises(LogUnavailable, match="exists already"):
        back_up(url, copy)
    assert copy.read_text() == "precious"


def test_a_log_that_does_not_verify_is_not_copied(url: str, copy: Path) -> None:
    with closing(raw_connection(url)) as raw:
        raw.execute("DROP TRIGGER events_no_update")
        raw.execute("UPDATE events SET correlation_id = 'x' WHERE position = 7")
    with pytest.raises(CorruptLog):
        back_up(url, copy)
    assert list(copy.parent.glob("copy*")) == []


def test_a_copy_of_another_log_is_refused(url: str, copy: Path, tmp_path: Path) -> None:
    assert _run("log", "show", "--sign").exit_code == 0
    other = new_log(tmp_path)
    with open_log(other, clock=SystemClock()) as log:
        fill(log)
    back_up(other, copy)
    before = verify(url)
    assert _run("log", "restore", str(copy)).exit_code == 1
    assert verify(url) == before


@pytest.mark.parametrize("content", [b"", b"no database at all, but long enough to look like one"])
def test_a_file_that_is_no_copy_is_refused(url: str, copy: Path, content: bytes) -> None:
    copy.write_bytes(content)
    before = verify(url)
    result = _run("log", "restore", str(copy))
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert verify(url) == before


def test_a_changed_copy_is_refused(url: str, copy: Path) -> None:
    back_up(url, copy)
    with closing(raw_connection(f"sqlite:///{copy}")) as raw:
        raw.execute("DROP TRIGGER events_no_update")
        raw.execute("UPDATE events SET correlation_id = 'x' WHERE position = 7")
    with pytest.raises(CorruptLog):
        restore(url, copy, kept_as="old")


def test_a_restore_is_refused_while_a_service_runs(url: str, copy: Path, tmp_path: Path) -> None:
    back_up(url, copy)
    with serve_lock(tmp_path / "data"):
        result = _run("log", "restore", str(copy))
    assert result.exit_code == 1
    assert "is served already" in result.stderr


def test_a_copy_is_put_where_there_is_no_log(url: str, copy: Path, tmp_path: Path) -> None:
    head = back_up(url, copy)
    shutil.rmtree(tmp_path / "data")
    assert _run("log", "restore", str(copy)).exit_code == 0
    assert verify(url) == head


def test_a_restore_voids_the_heads_that_it_gave_up(url: str, copy: Path, tmp_path: Path) -> None:
    assert _run("log", "show", "--sign").exit_code == 0
    back_up(url, copy)
    _grow(url)
    assert _run("log", "show", "--sign").exit_code == 0
    assert _run("log", "restore", str(copy)).exit_code == 0
    assert _run("log", "verify").exit_code == 0
    assert _grow(url).position == 16
    assert _run("log", "show", "--sign").exit_code == 0
    assert _run("log", "verify").exit_code == 0
    kinds = [note.kind for note in CheckpointFiles.of(tmp_path / "data").read()]
    assert kinds == ["head", "head", "restore", "head"]


def test_a_log_that_another_tool_restored_is_signed_as_restored(url: str, copy: Path) -> None:
    assert _run("log", "show", "--sign").exit_code == 0
    assert _run("log", "backup", str(copy)).exit_code == 0
    _grow(url)
    assert _run("log", "show", "--sign").exit_code == 0
    shutil.copy(copy, Path(database_file(url) or ""))
    assert _run("log", "verify").exit_code == 1
    assert _run("log", "show", "--sign").exit_code == 1
    signed = _run("log", "restore", "--sign")
    assert signed.exit_code == 0, signed.output
    assert "15 events verify" in signed.stdout
    assert _run("log", "verify").exit_code == 0
    _grow(url)
    assert _run("log", "show", "--sign").exit_code == 0
    assert _run("log", "verify").exit_code == 0


def test_another_log_is_not_signed_as_restored(url: str, tmp_path: Path) -> None:
    _grow(url)
    assert _run("log", "show", "--sign").exit_code == 0
    other = new_log(tmp_path)
    with open_log(other, clock=SystemClock()) as log:
        fill(log)
    _grow(other)
    shutil.copy(Path(database_file(other) or ""), Path(database_file(url) or ""))
    refused = _run("log", "restore", "--sign")
    assert refused.exit_code == 1
    assert "another event stood here when the head was signed" in refused.stderr
    assert _run("log", "verify").exit_code == 1


def test_a_restore_is_not_signed_while_a_service_runs_or_without_a_head(
    url: str, tmp_path: Path
) -> None:
    with serve_lock(tmp_path / "data"):
        refused = _run("log", "restore", "--sign")
    assert refused.exit_code == 1
    assert "stop it first" in refused.stderr
    unsigned = _run("log", "restore", "--sign")
    assert unsigned.exit_code == 0
    assert "nothing to sign" in unsigned.stdout
    assert not CheckpointFiles.of(tmp_path / "data").checkpoints.exists()
    assert verify(url).position == 15


def test_a_damaged_log_gives_way_to_a_copy_and_is_kept(url: str, copy: Path) -> None:
    head = back_up(url, copy)
    file = database_file(url)
    assert file is not None
    file.write_bytes(b"x" * 8192)
    done = restore(url, copy, kept_as="damaged")
    assert verify(url) == head
    assert done.kept is not None
    assert done.kept.read_bytes() == b"x" * 8192


def test_a_backup_that_is_killed_leaves_no_copy_or_a_whole_one(url: str, copy: Path) -> None:
    before = verify(url)
    for _ in killed_at_every_step(lambda: back_up(url, copy)):
        if copy.exists():
            assert verify_copy(copy) == before
            copy.unlink()
    assert verify_copy(copy) == before == verify(url)


def test_a_restore_that_is_killed_leaves_the_old_log_or_the_new_one(url: str, copy: Path) -> None:
    old = back_up(url, copy)
    present = _grow(url)
    deaths = 0
    for _ in killed_at_every_step(lambda: restore(url, copy, kept_as="kept")):
        deaths += 1
        for kept in copy.parent.glob("data/*kept*"):
            assert verify(f"sqlite:///{kept}") == present
            kept.unlink()
        found = verify(url)
        assert found in {old, present}
        if found == old:
            present = _grow(url)
    assert verify(url) == old
    assert deaths > 5


def test_the_old_names_are_durable_before_the_new_file_takes_their_place(
    url: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(url, copy)
    file = database_file(url)
    assert file is not None
    # Damaged, so that its write-ahead log cannot be folded into it.
    file.write_bytes(b"x" * 8192)
    wal = file.with_name(file.name + "-wal")
    wal.write_bytes(b"the last commits")
    #: What a power cut would leave of the directory, and what was synced.
    durable: set[str] = set()
    at_replacement: list[set[str]] = []
    replace = Path.replace

    def sync(directory: Path) -> None:
        durable.clear()
        durable.update(path.name for path in directory.iterdir())

    def replaced(path: Path, target: Path) -> Path:
        if target == file:
            at_replacement.append(set(durable))
        return replace(path, target)

    monkeypatch.setattr(backup, "sync_directory", sync)
    monkeypatch.setattr(Path, "replace", replaced)
    restore(url, copy, kept_as="kept")
    (names,) = at_replacement
    assert {f"{file.name}.kept", f"{file.name}.kept-wal"} <= names
    assert wal.name not in names
    assert file.with_name(f"{file.name}.kept-wal").read_bytes() == b"the last commits"


def test_a_restore_waits_for_the_readers_of_the_log(
    url: str, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(url, copy)
    present = _grow(url)
    monkeypatch.setattr(backup, "BUSY_TIMEOUT_MS", 10)
    with closing(raw_connection(url)) as raw:
        raw.execute("SELECT count(*) FROM events").fetchall()
        with pytest.raises(LogUnavailable, match="another process reads the log"):
            restore(url, copy, kept_as="kept")
    assert verify(url) == present
    restore(url, copy, kept_as="kept")
    assert verify(url) != present
