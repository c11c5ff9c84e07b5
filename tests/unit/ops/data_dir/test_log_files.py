"""Log files: no line is lost at a rotation, and a disk that fails stops nothing."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ops.data_dir.log_files import (
    PRUNE_S,
    RETRY_S,
    LogFileReader,
    LogFiles,
    LogLimits,
    segments,
)
from tests.support.polling import scaled

LIMITS = LogLimits(file_bytes=200, total_bytes=10**9, keep_s=1000)


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


def _sizes(directory: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(segments(directory))]


def test_full_file_is_followed_by_the_next_number(tmp_path: Path) -> None:
    files = LogFiles(tmp_path / "logs", LIMITS)
    for number in range(30):
        files.write(f"line {number:03d} {'x' * 20}\n")
    files.close()
    *full, last = sorted(segments(tmp_path / "logs"))
    assert [path.name for path in full] == [f"0000000{number}.log.gz" for number in range(1, 5)]
    assert last.name == "00000005.log"
    assert {path.stat().st_mode & 0o777 for path in (*full, last)} == {0o600}
    assert max(_sizes(tmp_path / "logs")) <= LIMITS.file_bytes
    assert max(len(gzip.decompress(path.read_bytes())) for path in full) <= LIMITS.file_bytes
    lines = list(LogFileReader(tmp_path / "logs").read())
    assert [line[:8] for line in lines] == [f"line {number:03d}" for number in range(30)]


def test_reader_that_follows_gets_every_line_once_over_rotations(tmp_path: Path) -> None:
    reader, got, is_over = LogFileReader(tmp_path), list[str](), threading.Event()

    def follow() -> None:
        while not is_over.is_set():
            got.extend(reader.read())
        got.extend(reader.read())

    thread = threading.Thread(target=follow)
    thread.start()
    files = LogFiles(tmp_path, LIMITS)
    for number in range(3000):
        files.write(f"{number}\n")
    is_over.set()
    thread.join(scaled(60))
    assert got == [str(number) for number in range(3000)]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]))))
def test_lines_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    directory = tmp_path_factory.mktemp("logs")
    files = LogFiles(directory, LIMITS)
    for line in lines:
        files.write(line + "\n")
    assert list(LogFileReader(directory).read()) == lines


def test_reader_that_has_read_half_of_a_file_goes_on_when_it_is_compressed(tmp_path: Path) -> None:
    files, reader = LogFiles(tmp_path, LIMITS), LogFileReader(tmp_path)
    files.write("one\n")
    assert list(reader.read()) == ["one"]
    files.write("two\n")
    files.write(f"{'x' * 198}\n")
    assert not (tmp_path / "00000001.log").exists()
    assert list(reader.read()) == ["two", "x" * 198]


def test_full_file_that_cannot_be_compressed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    clock = Clock()
    files = LogFiles(tmp_path, LIMITS, now_s=clock)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.copyfileobj", full)
        for line in ("one", "x" * 198, "three"):
            files.write(f"{line}\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"0000000{number}.log" for number in range(1, 4)
    ]
    clock.now_s += PRUNE_S
    files.write("four\n")
    assert len(list(tmp_path.glob("*.gz"))) == 2
    assert list(LogFileReader(tmp_path).read()) == ["one", "x" * 198, "three", "four"]


def test_process_that_ends_between_both_forms_of_a_file_leaves_each_line_once(
    tmp_path: Path,
) -> None:
    files = LogFiles(tmp_path, LIMITS)
    files.write("one\n")
    (tmp_path / "00000001.log.gz").write_bytes(gzip.compress(b"one\n"))
    (tmp_path / "00000001.tmp").write_bytes(b"unfinished")
    assert list(LogFileReader(tmp_path).read()) == ["one"]
    files.write(f"{'x' * 198}\n")
    assert list(LogFileReader(tmp_path).read()) == ["one", "x" * 198]
    assert len(list(tmp_path.iterdir())) == 2


def test_damaged_file_costs_its_own_lines(tmp_path: Path) -> None:
    files = LogFiles(tmp_path, LIMITS)
    files.write("one\n")
    files.write(f"{'x' * 198}\n")
    for damage in (b"no gzip", gzip.compress(b"one\n")[:-9]):
        (tmp_path / "00000001.log.gz").write_bytes(damage)
        assert list(LogFileReader(tmp_path).read())[-1] == "x" * 198


def test_oldest_files_go_beyond_the_size_of_all_and_by_age(tmp_path: Path) -> None:
    clock = Clock()
    limits = LogLimits(file_bytes=100, total_bytes=350, keep_s=1000)
    files = LogFiles(tmp_path, limits, now_s=clock)
    for number in range(50):
        files.write(f"line {number:03d} {'x' * 30}\n")
    assert sum(_sizes(tmp_path)) <= limits.total_bytes
    assert next(iter(reversed(list(LogFileReader(tmp_path).read())))).startswith("line 049")
    for path in segments(tmp_path):
        os.utime(path, (clock.now_s, clock.now_s))
    clock.now_s += 2000
    files.write("after a long time\n")
    files.write("x" * 90 + "\n")
    assert list(LogFileReader(tmp_path).read())[-2:] == ["after a long time", "x" * 90]
    assert len(segments(tmp_path)) <= 2


def test_new_process_goes_on_in_the_last_file(tmp_path: Path) -> None:
    first = LogFiles(tmp_path, LIMITS)
    first.write("one\n")
    first.write("cut off")  # the process was killed inside a line
    second = LogFiles(tmp_path, LIMITS)
    second.write("two\n")
    assert len(segments(tmp_path)) == 1
    assert list(LogFileReader(tmp_path).read()) == ["one", "cut off", "two"]


def test_failing_disk_costs_lines_and_notes_how_many(tmp_path: Path) -> None:
    clock, fails = Clock(), [True]

    def open_file(path: Path) -> int:
        if fails[0]:
            raise OSError(28, "No space left on device")
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    files = LogFiles(tmp_path / "logs", LIMITS, open_file=open_file, now_s=clock)
    files.write("one\n")
    files.write("two\n")
    fails[0] = False
    files.write("three\n")
    assert files.lost == 3
    clock.now_s += RETRY_S
    files.write("four\n")
    assert list(LogFileReader(tmp_path / "logs").read()) == [
        "(3 lines were lost: they could not be written)",
        "four",
    ]


def test_directory_that_cannot_be_made_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    files = LogFiles(tmp_path / "file" / "logs", LIMITS)
    files.write("one\n")
    assert files.lost == 1


_SHORT = """
import resource, signal, sys
from pathlib import Path
from ops.data_dir.log_files import LogFiles, LogLimits
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
clock = [0.0]
files = LogFiles(Path(sys.argv[1]), LogLimits(file_bytes=10**6, total_bytes=10**9, keep_s=10**9),
                 now_s=lambda: clock[0] + 10**9)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (50, hard))
for number in range(20):
    files.write(f"line {number} of twenty\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
clock[0] += 100
files.write("room again\\n")
"""


def test_line_that_did_not_fit_whole_is_ended_before_the_next_one(tmp_path: Path) -> None:
    """The limit on file sizes of a process stands for a full disk: writes are cut short."""
    subprocess.run([sys.executable, "-c", _SHORT, str(tmp_path)], check=True, timeout=scaled(60))
    lines = list(LogFileReader(tmp_path).read())
    assert lines[:2] == ["line 0 of twenty", "line 1 of twenty"]
    assert "line 2 of twenty".startswith(lines[2])
    assert lines[3:] == ["(18 lines were lost: they could not be written)", "room again"]
