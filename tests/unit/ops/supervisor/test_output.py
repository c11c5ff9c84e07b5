"""The parts' lines reach the terminal, and a stopped terminal stops nobody."""

from __future__ import annotations

import errno
import io
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

from ops.supervisor.output import (
    LINE_BYTES_MAX,
    LINES_MAX,
    BoundedFile,
    LineWriter,
    PartOutput,
    parsed,
    pump,
)
from tests.support.polling import scaled

_DEADLINE_S = 60


class StoppedTerminal(io.StringIO):
    """Takes the first line and then nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = threading.Event()
        self.let_go = threading.Event()

    def write(self, text: str) -> int:
        self.holds.set()
        assert self.let_go.wait(scaled(_DEADLINE_S))
        return super().write(text)


def test_stopped_terminal_never_blocks_and_the_loss_is_told() -> None:
    terminal = StoppedTerminal()
    writer = LineWriter(terminal)
    writer.put("first")
    assert terminal.holds.wait(scaled(_DEADLINE_S))
    for number in range(LINES_MAX + 5):
        writer.put(f"line {number}")
    terminal.let_go.set()
    writer.close()
    lines = terminal.getvalue().splitlines()
    assert lines[:3] == ["first", "(5 lines were dropped)", "line 0"]
    assert len(lines) == LINES_MAX + 2


def test_held_lines_come_after_what_the_start_prints() -> None:
    terminal = io.StringIO()
    writer = LineWriter(terminal)
    writer.hold()
    for number in range(3):
        writer.put(f"line {number}")
    terminal.write("the block\n")
    writer.release()
    writer.close()
    assert terminal.getvalue().splitlines() == ["the block", "line 0", "line 1", "line 2"]


def test_end_of_a_failed_start_writes_the_held_lines() -> None:
    terminal = io.StringIO()
    writer = LineWriter(terminal)
    writer.hold()
    writer.put("cannot_run")
    writer.close()
    assert terminal.getvalue() == "cannot_run\n"


def test_lines_get_their_prefix_and_long_ones_are_cut() -> None:
    read_end, write_end = os.pipe()
    terminal = io.StringIO()
    writer = LineWriter(terminal)
    files = LineWriter(io.StringIO())
    output = PartOutput(writer, lambda part, line: f"{part} | {line}", files=files)
    thread = pump(os.fdopen(read_end, "rb"), "api", partial(output.put, "api"))
    with os.fdopen(write_end, "wb") as source:
        source.write(b"one\n" + b"x" * (LINE_BYTES_MAX + 3) + b"\nbad \xff\nlast without an end")
    thread.join(scaled(_DEADLINE_S))
    writer.close()
    assert terminal.getvalue().splitlines() == [
        "api | one",
        "api | " + "x" * LINE_BYTES_MAX,
        "api | xxx",
        "api | bad \N{REPLACEMENT CHARACTER}",
        "api | last without an end",
    ]


def test_terminal_that_is_gone_stops_no_part() -> None:
    terminal = io.StringIO()
    terminal.close()
    writer = LineWriter(terminal)
    writer.put("one")
    writer.put("two")
    writer.close()


class FullDisk(io.RawIOBase):
    """A file on a disk that is full until it has room."""

    def __init__(self) -> None:
        self.has_room = threading.Event()
        self.was_full = threading.Event()
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        if not self.has_room.is_set():
            self.was_full.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data += bytes(data)
        return len(data)


def test_lines_follow_in_their_order_once_a_full_disk_has_room() -> None:
    disk = FullDisk()
    stream = io.TextIOWrapper(io.BufferedWriter(disk), line_buffering=True)
    writer = LineWriter(stream, retry_s=0.001)
    writer.put("first")
    assert disk.was_full.wait(scaled(_DEADLINE_S))
    for number in range(LINES_MAX + 5):
        writer.put(f"line {number}")
    disk.has_room.set()
    writer.close()
    lines = disk.data.decode().splitlines()
    assert lines[:3] == ["first", "(5 lines were dropped)", "line 0"]
    assert len(lines) == LINES_MAX + 2


def test_full_disk_does_not_hold_up_the_end() -> None:
    disk = FullDisk()
    stream = io.TextIOWrapper(io.BufferedWriter(disk), line_buffering=True)
    writer = LineWriter(stream, retry_s=_DEADLINE_S)
    writer.put("first")
    assert disk.was_full.wait(scaled(_DEADLINE_S))
    disk.has_room.set()
    writer.close()
    assert disk.data == b"first\n"


def test_bounded_file_is_emptied_when_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "serve.jsonl"
    with path.open("w") as stream:  # not for appending
        bounded = BoundedFile(stream, 20)
        seen = []
        for number in range(4):
            bounded.write(f"line {number}\n")
            bounded.flush()
            seen.append(path.read_text())
    assert seen == ["line 0\n", "line 0\nline 1\n", "", "line 3\n"]


def test_files_get_json_and_the_terminal_what_it_shows() -> None:
    terminal, file = io.StringIO(), io.StringIO()
    output = PartOutput(LineWriter(terminal), lambda _, line: line[:5], files=LineWriter(file))
    output.put("api", '{"message": "listening", "part": "api"}')
    output.put("worker", "Traceback (most recent call last):")
    output.close()
    assert terminal.getvalue().splitlines() == ['{"mes', "Trace"]
    first, second = (parsed(line) for line in file.getvalue().splitlines())
    assert first == {"message": "listening", "part": "api"}
    assert second is not None
    assert (second["part"], second["message"]) == ("worker", "Traceback (most recent call last):")
