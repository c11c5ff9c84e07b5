from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from domain.errors import CorruptLog, LogUnavailable
from domain.log.checkpoints import ForgedCheckpoint, sign_checkpoint
from domain.log.record import LogHead
from domain.values import StreamName
from ops.cli.main import build_app
from ops.clock import SystemClock
from ops.log.admin.backup import back_up
from ops.log.admin.checkpoint_files import CheckpointFiles, sign_log
from ops.log.archives import event_line, read_events
from ops.log.database import database_file, reader_engine
from ops.log.row_codec import link
from ops.log.sql_event_log import SqlEventLog, open_log
from tests.support.builders.job_events import draft, worker_event
from tests.support.builders.log_files import fill, new_log, raw_connection
from tests.support.fakes.time import FakeClock
from tests.support.polling import scaled

WORKER = StreamName("worker-1")


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("SEMANTIC_DATA_DIR", str(tmp_path))
    monkeypatch.delenv("SEMANTIC_LOG__URL", raising=False)
    return new_log(tmp_path)


@pytest.fixture
def files(tmp_path: Path) -> CheckpointFiles:
    return CheckpointFiles.of(tmp_path)


@pytest.fixture
def signed(url: str) -> str:
    """A log of 15 events whose head is signed."""
    with open_log(url, clock=SystemClock()) as log:
        fill(log)
    assert _run("show", "--sign").exit_code == 0
    return url


def _run(*arguments: str) -> Result:
    app = build_app({"log"})
    return CliRunner().invoke(app, ["log", *arguments])


def _tamper(url: str, *statements: str) -> None:
    with closing(raw_connection(url)) as raw:
        raw.execute("DROP TRIGGER IF EXISTS events_no_delete")
        raw.execute("DROP TRIGGER IF EXISTS events_no_update")
        for statement in statements:
            raw.execute(statement)


def _append(log: SqlEventLog, version: int = 0) -> None:
    log.append(WORKER, [draft(worker_event())], expected_version=version)


def _bad_position(result: Result) -> int:
    assert result.exit_code == 1, result.output
    return int(json.loads(result.stdout)["position"])


def test_a_whole_log_fits_its_checkpoints(signed: str) -> None:
    with open_log(signed, clock=SystemClock()) as log:
        _append(log)
    assert _run("show", "--sign").exit_code == 0
    result = _run("verify")
    assert result.exit_code == 0, result.output
    assert "2 signed heads fit" in result.stdout


def test_a_log_without_its_end_and_without_projections_is_found(signed: str) -> None:
    _tamper(signed, "DELETE FROM events WHERE position > 9", "DELETE FROM checkpoints")
    result = _run("verify", "--json")
    assert _bad_position(result) == 10
    assert "signed head 15" in json.loads(result.stdout)["message"]


def test_a_log_put_back_to_an_older_copy_is_found_and_not_signed(
    url: str, files: CheckpointFiles, tmp_path: Path
) -> None:
    with open_log(url, clock=SystemClock()) as log:
        fill(log, jobs=2)
    database = database_file(url)
    assert database is not None
    shutil.copy(database, tmp_path / "older")
    with open_log(url, clock=SystemClock()) as log:
        _append(log)
    assert _run("show", "--sign").exit_code == 0
    shutil.copy(tmp_path / "older", database)

    assert _bad_position(_run("verify", "--json")) == 7
    engine = reader_engine(url)
    with pytest.raises(CorruptLog, match="before its last signed head"):
        sign_log(engine, files, clock=SystemClock())
    engine.dispose()


def test_an_end_that_was_replaced_by_one_whose_hashes_fit_is_found(signed: str) -> None:
    _tamper(signed, "DELETE FROM events WHERE position > 13", "DELETE FROM checkpoints")
    with open_log(signed, clock=SystemClock()) as log:
        _append(log)
        _append(log, 1)
        _append(log, 2)
    assert log.head().position == 16
    result = _run("verify", "--json")
    assert _bad_position(result) == 15
    assert "when the head was signed" in json.loads(result.stdout)["message"]
    assert _run("show", "--sign").exit_code == 1


def test_checkpoints_kept_elsewhere_reveal_a_restored_data_directory(
    url: str, files: CheckpointFiles, tmp_path: Path
) -> None:
    elsewhere, before = tmp_path / "elsewhere.jsonl", tmp_path / "before.sqlite3"
    with open_log(url, clock=SystemClock()) as log:
        fill(log, 3)
    back_up(url, before)
    with open_log(url, clock=SystemClock()) as log:
        _append(log)
    assert _run("show", "--sign").exit_code == 0
    shutil.copy(files.checkpoints, elsewhere)
    shutil.copy(before, tmp_path / "events.sqlite3")
    assert _run("verify").exit_code == 1
    files.checkpoints.unlink()
    assert "lacks what heads.last has" in _run("verify").stderr
    (tmp_path / "heads.last").unlink()
    assert _run("verify").exit_code == 0
    assert _bad_position(_run("verify", "--heads", str(elsewhere), "--json")) == 10


@pytest.mark.parametrize(
    ("field", "value"),
    [("position", 14), ("hash", "f" * 64), ("at", "2030-01-01"), ("kind", "restore")],
)
def test_a_changed_head_is_found(
    signed: str, files: CheckpointFiles, field: str, value: object
) -> None:
    assert signed
    checkpoint = json.loads(files.checkpoints.read_text())
    files.checkpoints.write_text(json.dumps(checkpoint | {field: value}) + "\n")
    result = _run("verify")
    assert result.exit_code == 1
    assert "line 1 of the heads has a signature that is not right" in result.stderr
    report = json.loads(_run("verify", "--json").stdout)
    assert (report["ok"], report["position"]) == (False, None)
    assert "signature that is not right" in report["message"]


def test_a_head_signed_with_another_key_is_found(signed: str, files: CheckpointFiles) -> None:
    assert signed
    files.key.write_text("ab" * 32)
    result = _run("verify")
    assert result.exit_code == 1
    assert "another key" in result.stderr


@pytest.mark.parametrize("line", ["no json", "[]", "{}", '{"kind": "head"}'])
def test_a_line_that_is_no_head_is_found(signed: str, files: CheckpointFiles, line: str) -> None:
    assert signed
    with files.checkpoints.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ForgedCheckpoint, match="line 2"):
        files.read()


def test_a_line_that_repeats_an_earlier_one_is_found(signed: str, files: CheckpointFiles) -> None:
    assert signed
    with files.checkpoints.open("a") as file:
        file.write("\n" + files.checkpoints.read_text())
    with pytest.raises(ForgedCheckpoint, match="line 3 of the heads repeats"):
        files.read()


def test_half_a_line_left_by_a_crash_is_passed_over_and_replaced(
    signed: str, files: CheckpointFiles
) -> None:
    with files.checkpoints.open("a") as file:
        file.write('{"kind":"he')
    assert len(files.read()) == 1
    with open_log(signed, clock=SystemClock()) as log:
        _append(log)
    assert _run("show", "--sign").exit_code == 0
    assert [checkpoint.position for checkpoint in files.read()] == [15, 16]


def test_an_unchanged_head_is_signed_once(signed: str, files: CheckpointFiles) -> None:
    assert signed
    assert _run("show", "--sign").exit_code == 0
    assert len(files.read()) == 1


def test_the_key_is_readable_by_its_owner_only_and_drawn_once(
    signed: str, files: CheckpointFiles
) -> None:
    assert signed
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert files.make_key() == files.make_key() == files.load_key()


def test_checkpoints_without_their_key_are_not_signed_with_a_new_one(
    signed: str, files: CheckpointFiles
) -> None:
    assert signed
    files.key.unlink()
    with pytest.raises(LogUnavailable, match="key that is not there"):
        files.make_key()
    assert _run("verify").exit_code == 1


def test_an_empty_log_can_be_signed(url: str, files: CheckpointFiles) -> None:
    engine = reader_engine(url)
    checkpoint = sign_log(engine, files, clock=FakeClock())
    engine.dispose()
    assert checkpoint.position == 0
    assert _run("verify").exit_code == 0


# --- files of events -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log.jsonl", "log.jsonl.gz"])
def test_an_export_verifies_without_the_database(signed: str, tmp_path: Path, name: str) -> None:
    out = tmp_path / name
    assert _run("ls", "--export", "--out", str(out)).stdout == f"15 events in {out}\n"
    database = database_file(signed)
    assert database is not None
    database.unlink()
    (report,) = [json.loads(_run("verify", "--file", str(out), "--json").stdout)]
    assert (report["ok"], report["events"], report["gaps"]) == (True, 15, 0)
    assert _run("verify", "--file", str(out)).exit_code == 0


def test_a_selection_says_that_it_is_one(signed: str, tmp_path: Path) -> None:
    assert signed
    out = tmp_path / "some.jsonl"
    _run("ls", "--export", "--out", str(out), "--type", "JobCompleted")
    result = _run("verify", "--file", str(out))
    assert result.exit_code == 0
    assert "a selection" in result.stdout
    # Never over a file that is there.
    assert _run("ls", "--export", "--out", str(out)).exit_code == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"correlation_id":"req-1"', '"correlation_id":"req-2"'),
        ('"position":7', '"position":5'),
        ('"type"', '"tipe"'),
        ('"prev_hash":"', '"prev_hash":"0'),
        ("{", "["),
    ],
)
def test_a_changed_line_of_an_export_is_named(
    signed: str, tmp_path: Path, old: str, new: str
) -> None:
    assert signed
    out = tmp_path / "log.jsonl"
    _run("ls", "--export", "--out", str(out))
    lines = out.read_text().splitlines()
    assert old in lines[6]
    lines[6] = lines[6].replace(old, new, 1)
    out.write_text("\n".join(lines))
    result = _run("verify", "--file", str(out), "--json")
    assert _bad_position(result) in {5, 7}


def test_a_damaged_compressed_export_is_named(signed: str, tmp_path: Path) -> None:
    assert signed
    out = tmp_path / "log.jsonl.gz"
    _run("ls", "--export", "--out", str(out))
    out.write_bytes(out.read_bytes()[:-20])
    assert _run("verify", "--file", str(out)).exit_code == 1


def test_a_line_dropped_from_an_export_breaks_nothing_but_is_told(
    signed: str, tmp_path: Path
) -> None:
    assert signed
    out = tmp_path / "log.jsonl"
    _run("ls", "--export", "--out", str(out))
    lines = out.read_text().splitlines()
    out.write_text("\n".join(lines[:6] + lines[7:]))
    report = json.loads(_run("verify", "--file", str(out), "--json").stdout)
    assert report["gaps"] == 1


def test_a_chained_event_of_another_writer_does_not_fit_the_checkpoints(
    signed: str, tmp_path: Path
) -> None:
    assert signed
    out = tmp_path / "log.jsonl"
    _run("ls", "--export", "--out", str(out), "--limit", "14")
    before = list(read_events(out))[-1]
    forged = link(
        draft(worker_event("other")),
        stream=WORKER,
        version=1,
        before=LogHead(position=before.position, hash=before.hash),
        recorded_at="2026-01-01T00:00:00.000000Z",
    )
    with out.open("a") as file:
        file.write(event_line(forged))
    assert _bad_position(_run("verify", "--file", str(out), "--json")) == 15


# --- reading ---------------------------------------------------------------------------------


def test_a_tail_ends_when_its_reader_has_gone_although_nothing_happens(signed: str) -> None:
    assert signed
    code = "from ops.cli.main import build_app; build_app({'log'})()"
    command = [sys.executable, "-c", code, "log", "ls", "--follow", "-n", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        follower.stdout.readline()
        follower.stdout.close()
        assert follower.wait(scaled(30)) == 0
        assert follower.stderr.read() == b""


@pytest.mark.usefixtures("signed")
@pytest.mark.parametrize("rest", [b"\0\0\0", b'\0\0\0\0mac":"00"}\n', b'{"at":'])
def test_last_line_that_a_power_cut_has_torn_is_skipped_and_replaced(
    files: CheckpointFiles, rest: bytes
) -> None:
    whole = files.read()
    with files.checkpoints.open("ab") as file:
        file.write(rest)
    assert files.read() == whole
    assert files.last() == whole[-1]
    head = LogHead(position=whole[-1].position, hash=whole[-1].hash)
    later = sign_checkpoint(head, key=files.load_key(), at="2099-01-02T03:04:05Z")
    files.append(later)
    assert files.read() == (*whole, later)
