"""``semantic status`` of a service: once, followed through a pipe, and followed on a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.hostile_text import HOSTILE
from tests.support.polling import scaled
from tests.support.processes.stand_in_jobs import OVERVIEW, STATUS, StandInJobs

_ROOT = Path(__file__).parents[3]
_DEADLINE_S = 60


def _variables(home: Path, term: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "SEMANTIC" not in name.upper()}
    return kept | {
        "HOME": str(home),
        "PYTHONPATH": str(_ROOT),
        "SEMANTIC_DATA_DIR": str(home / "data"),
        "TERM": term,
        "COLUMNS": "200",
    }


@contextmanager
def _started(
    home: Path, *words: str, stdout: int = subprocess.PIPE, term: str = "xterm"
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ops.cli.main", "status", *words],
        env=_variables(home, term),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.STDOUT if stdout == subprocess.PIPE else stdout,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def _interrupted(process: subprocess.Popen[str]) -> int:
    process.send_signal(signal.SIGINT)
    return process.wait(scaled(_DEADLINE_S))


def _block(process: subprocess.Popen[str]) -> list[str]:
    """Return the lines of a block of the output, up to the empty line behind it."""
    assert process.stdout is not None
    lines = []
    while line := process.stdout.readline().rstrip("\n"):
        lines.append(line)
    return lines


def _read_until(terminal: int, text: str, shown: str = "") -> str:
    while text not in shown:
        shown += os.read(terminal, 65_536).decode(errors="replace")
    return shown


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield a home in which a stand-in serves."""
    with StandInJobs() as api, api.serving(tmp_path / "data"):
        yield tmp_path


def test_status_shows_the_load(home: Path) -> None:
    with _started(home) as process:
        lines = [line.split(maxsplit=1) for line in _block(process)]
        assert process.wait(scaled(_DEADLINE_S)) == 0
    assert ["load", "1 running · 2 waiting · 12.3 tokens/s · 1,500 prompt tokens/s"] in [
        [name, value.partition(" · first")[0]] for name, value in lines
    ]
    memory = "4,000 of 8,000 MB · weights 1,000 MB · contexts 3,000 MB"
    assert ["memory", memory] in lines


def test_followed_pipe_gets_a_block_after_each_change(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _started(home, "--follow") as process:
        first = _block(process)
        monkeypatch.setitem(STATUS, "model", "another")
        second = _block(process)
        assert _interrupted(process) == 0
        assert process.stdout is not None
        assert process.stdout.read() == ""
    changed = [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]]
    assert [[line.split() for line in pair] for pair in changed] == [
        [["model", "stand-in"], ["model", "another"]]
    ]


def test_followed_json_is_a_line_after_each_change(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _started(home, "--follow", "--json") as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        monkeypatch.setitem(OVERVIEW, "memory", None)
        second = json.loads(process.stdout.readline())
        assert _interrupted(process) == 0
    assert first["rates"] == OVERVIEW["rates"]
    assert first == second | {"memory": first["memory"]}


def test_follow_survives_the_service(tmp_path: Path) -> None:
    with _started(tmp_path, "--follow") as process:
        assert "not running" in _block(process)[0]
        with StandInJobs() as api, api.serving(tmp_path / "data"):
            assert _block(process)[0].split()[:2] == ["service", "ready"]
        assert "not running" in _block(process)[0]
        assert _interrupted(process) == 0


@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_followed_terminal_shows_changes_and_hides_no_control(
    home: Path, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, slave = pty.openpty()
    with _started(home, "--follow", stdout=slave, term=term) as process:
        os.close(slave)
        shown = _read_until(master, "stand-in")
        monkeypatch.setitem(STATUS, "model", HOSTILE)
        shown = _read_until(master, "\\u001b]0;owned", shown)
        assert _interrupted(process) == 0
    os.close(master)
    assert "\x1b]0;owned" not in shown
    assert ("\x1b[" in shown) == (term == "xterm")


def test_follow_of_the_past_is_misuse(tmp_path: Path) -> None:
    with _started(tmp_path, "--follow", "--as-of", "1") as process:
        assert "leave out --as-of" in _block(process)[0]
        assert process.wait(scaled(_DEADLINE_S)) == 2
