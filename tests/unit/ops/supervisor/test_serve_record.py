"""The lock on a data directory and the note in it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ops.supervisor.serve_record import (
    CannotServe,
    PartRecord,
    ServeRecord,
    end_parts,
    read_record,
    serve_lock,
    write_record,
)
from tests.support.polling import scaled


def _record(**parts: PartRecord) -> ServeRecord:
    return ServeRecord(pid=os.getpid(), base_url="http://x", started_at="now", parts=parts)


def test_note_is_there_for_as_long_as_the_lock_is_held(tmp_path: Path) -> None:
    record = _record(api=PartRecord.of(os.getpid(), restarts=2))
    assert read_record(tmp_path) is None
    with serve_lock(tmp_path) as before:
        assert before is None
        write_record(tmp_path, record)
        assert read_record(tmp_path) == record
    assert read_record(tmp_path) is None


def test_second_holder_is_refused_by_pid(tmp_path: Path) -> None:
    with (
        serve_lock(tmp_path),
        pytest.raises(CannotServe, match=f"pid {os.getpid()}"),
        serve_lock(tmp_path),
    ):
        pytest.fail("held twice")


def test_note_of_a_killed_service_is_handed_to_the_next(tmp_path: Path) -> None:
    record = _record()
    write_record(tmp_path, record)
    assert read_record(tmp_path) is None
    with serve_lock(tmp_path) as before:
        assert before == record


def test_a_refused_service_leaves_the_record_of_the_running_one(tmp_path: Path) -> None:
    record = _record(api=PartRecord.of(os.getpid(), restarts=0))
    with serve_lock(tmp_path):
        write_record(tmp_path, record)
        with pytest.raises(CannotServe), serve_lock(tmp_path):
            pytest.fail("held twice")
        assert read_record(tmp_path) == record


def test_record_of_a_killed_service_stays_until_its_parts_have_ended(tmp_path: Path) -> None:
    living = _record(api=PartRecord.of(os.getpid(), restarts=0))
    write_record(tmp_path, living)
    for _ in range(2):  # neither replaces the record, as a service whose port is still taken
        with serve_lock(tmp_path) as before:
            assert before == living
    ended = _record(api=PartRecord(pid=os.getpid(), created=0.0, restarts=0))
    write_record(tmp_path, ended)
    with serve_lock(tmp_path) as before:
        assert before == ended
    assert not (tmp_path / "serve.json").exists()


def test_record_of_a_service_that_ends_goes_with_it(tmp_path: Path) -> None:
    with serve_lock(tmp_path):
        write_record(tmp_path, _record(api=PartRecord.of(os.getpid(), restarts=0)))
    assert not (tmp_path / "serve.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_note_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "serve.json").write_text(text)
    with serve_lock(tmp_path) as before:
        assert before is None


def test_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotServe, match="cannot be written"), serve_lock(tmp_path / "file" / "d"):
        pytest.fail("held")


def test_part_lives_until_it_ends_and_a_reused_pid_is_another_process() -> None:
    with subprocess.Popen(["sleep", "600"]) as process:
        part = PartRecord.of(process.pid, restarts=0)
        other = PartRecord(pid=process.pid, created=part.created - 100, restarts=0)
        assert part.is_alive()
        assert not other.is_alive()
        end_parts([other], 0)
        assert part.is_alive()
        end_parts([other, part], scaled(60))
        assert not part.is_alive()
        assert process.wait() == -signal.SIGTERM


def test_part_that_does_not_listen_is_killed_after_its_time() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    argv = [sys.executable, "-c", f"{deaf}; signal.pause()"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        end_parts([PartRecord.of(process.pid, restarts=0)], 0)
        assert process.wait() == -signal.SIGKILL
