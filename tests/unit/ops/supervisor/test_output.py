"""The parts' lines reach the terminal, and a stopped terminal stops nobody."""

from __future__ import annotations

import io
import os
import threading
from functools import partial

from ops.supervisor.output import (
    LINE_BYTES_MAX,
    LINES_MAX,
    LineWriter,
    PartOutput,
    json_line,
    parsed,
    pump,
)

_DEADLINE_S = 60


class StoppedTerminal(io.StringIO):
    """Takes the first line and then nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.holds = threading.Event()
        self.let_go = threading.Event()

    def write(self, text: str) -> int:
        self.holds.set()
        assert self.let_go.wait(_DEADLINE_S)
        return super().write(text)


def test_stopped_terminal_never_blocks_and_the_loss_is_told() -> None:
    terminal = StoppedTerminal()
    writer = LineWriter(terminal)
    writer.put("first")
    assert terminal.holds.wait(_DEADLINE_S)
    for number in range(LINES_MAX + 5):
        writer.put(f"line {number}")
    terminal.let_go.set()
    writer.close()
    lines = terminal.getvalue().splitlines()
    assert lines[:3] == ["first", "(5 lines were dropped)", "line 0"]
    assert len(lines) == LINES_MAX + 2


def test_lines_get_their_prefix_and_long_ones_are_cut() -> None:
    read_end, write_end = os.pipe()
    terminal = io.StringIO()
    writer = LineWriter(terminal)
    output = PartOutput(writer, lambda part, line: f"{part} | {line}", record=json_line)
    thread = pump(os.fdopen(read_end, "rb"), "api", partial(output.put, "api"))
    with os.fdopen(write_end, "wb") as source:
        source.write(b"one\n" + b"x" * (LINE_BYTES_MAX + 3) + b"\nbad \xff\nlast without an end")
    thread.join(_DEADLINE_S)
    writer.close()
    assert terminal.getvalue().splitlines() == [
        "api | one",
        "api | " + "x" * LINE_BYTES_MAX,
        "api | xxx",
        "api | bad \N{REPLACEMENT CHARACTER}",
        "api | last without an end",
    ]


def test_terminal_that_is_gone_stops_nobody() -> None:
    terminal = io.StringIO()
    terminal.close()
    writer = LineWriter(terminal)
    writer.put("one")
    writer.put("two")
    writer.close()


def test_files_get_json_and_the_terminal_what_it_shows() -> None:
    terminal, file = io.StringIO(), io.StringIO()
    output = PartOutput(
        LineWriter(terminal), lambda _, line: line[:5], files=LineWriter(file), record=json_line
    )
    output.put("api", '{"message": "listening", "part": "api"}')
    output.put("worker", "Traceback (most recent call last):")
    output.close()
    assert terminal.getvalue().splitlines() == ['{"mes', "Trace"]
    first, second = (parsed(line) for line in file.getvalue().splitlines())
    assert first == {"message": "listening", "part": "api"}
    assert second is not None
    assert (second["part"], second["message"]) == ("worker", "Traceback (most recent call last):")
