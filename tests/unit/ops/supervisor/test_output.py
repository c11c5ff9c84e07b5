"""The parts' lines reach the terminal, and a stopped terminal stops nobody."""

from __future__ import annotations

import io
import os
import threading

from ops.supervisor.output import LINE_BYTES_MAX, LINES_MAX, LineWriter, pump

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
    thread = pump(os.fdopen(read_end, "rb"), "api | ", writer)
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
