"""Progress of long prompts on a terminal: of ``semantic run`` and of agents that show none."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.cli.output import ProgressLine
from ops.cli.progress import reading_of, status_line, watch, words_of
from ops.clients.http_client import HttpClient
from tests.support.polling import scaled, wait_until
from tests.support.processes.stand_in_jobs import OVERVIEW, StandInJobs

_READS = "reads the prompt: 12,000 of 27,000 tokens"
#: Prints its settings and goes on until its standard input ends.
_AGENT = """#!/bin/sh
for word; do case "$word" in --settings=*) echo "${word#--settings=}";; esac; done
read line
"""


class Terminal:
    """The stream of errors of a command, as a terminal."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        self.seen = ""

    def see(self, text: str) -> None:
        """Read until a text was shown."""
        while text not in self.seen:
            self.seen += os.read(self._master, 4096).decode()

    def close(self) -> None:
        os.close(self._master)
        os.close(self.slave)


@pytest.fixture
def terminal() -> Any:
    one = Terminal()
    yield one
    one.close()


def _launch(home: Path, api: StandInJobs, terminal: Terminal, *words: str) -> subprocess.Popen[str]:
    program = home / "agent"
    program.write_text(_AGENT)
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if "SEMANTIC" not in name.upper()}
    named = {"HOME": str(home), "SEMANTIC_DATA_DIR": str(home / "data")}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "ops.cli.main", "launch", "claude"),
            *("--program", str(program), *words),
        ],
        env=kept | named | {"SEMANTIC_SERVER__PORT": str(api.port)},
        cwd=home,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=terminal.slave,
        text=True,
    )


def test_an_answer_without_a_screen_shows_the_prompt_on_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    with StandInJobs() as api, _launch(tmp_path, api, terminal, "-p", "hi") as agent:
        terminal.see(_READS)
        # The end of the output comes with the end of the agent: nothing else holds the pipe.
        out, _ = agent.communicate("go on\n", timeout=scaled(240))
        assert agent.returncode == 0
        assert "statusLine" not in json.loads(out)


def test_a_session_with_a_screen_gets_a_status_line_that_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    with StandInJobs() as api, _launch(tmp_path, api, terminal) as agent:
        assert agent.stdout is not None
        line = json.loads(agent.stdout.readline())["statusLine"]

        def shown() -> str:
            return subprocess.run(
                ["/bin/sh", "-c", line["command"]], capture_output=True, text=True, check=False
            ).stdout

        wait_until(lambda: _READS in shown(), what="the line")
        agent.communicate("go on\n", timeout=scaled(240))
        wait_until(lambda: not list((tmp_path / "data" / "clients").iterdir()), what="no file left")


def test_a_run_shows_how_far_its_prompt_is_read_and_clears_the_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    line = ProgressLine()
    for item in (
        {"kind": "progress", "phase": "queued", "done": 0, "total": 2},
        {"kind": "progress", "phase": "prefill", "done": 12_000, "total": 27_000},
        {"kind": "progress", "phase": "prefill", "done": 12_000, "total": 27_000},
        {"kind": "text", "text": "a"},
        {"kind": "text", "text": "b"},
    ):
        line.show_item(item)
    clear = "\r\x1b[K"
    assert capsys.readouterr().err == f"{clear}waits; 2 before it{clear}{_READS}{clear}"


def test_a_pipe_gets_no_progress(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLine().show("reads")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("rows", "waiting", "words"),
    [
        ([], 0, ""),
        ([], 3, "3 waiting"),
        ([("decode", 9, 9, 30.2)], 0, "writes an answer, 30 tokens/s"),
        (
            [("restore", 1, 27_000, None), ("decode", 9, 9, 30.2), ("decode", 9, 9, None)],
            1,
            "reads the prompt: 1 of 27,000 tokens · writes 2 answers, 30 tokens/s · 1 waiting",
        ),
        ([("start", 0, 0, None)], 0, ""),
    ],
)
def test_the_line_names_what_is_read_written_and_waiting(
    rows: list[tuple[str, int, int, float | None]], waiting: int, words: str
) -> None:
    names = ("phase", "read_tokens", "prompt_tokens", "tokens_per_s")
    running = [dict(zip(names, row, strict=True)) for row in rows]
    assert words_of({"running": running, "rates": {"queue_depth": waiting}}) == words


def test_a_service_that_is_away_clears_the_line_and_an_agent_that_ended_keeps_it() -> None:
    shown: list[str] = []
    with StandInJobs() as api:
        client = HttpClient(base_url=f"http://127.0.0.1:{api.port}")
        watch(client, words_of, shown.append, _times(2), pause_s=0)
        watch(client, words_of, shown.append, _times(1), pause_s=0)  # it ended during the request
    watch(client, words_of, shown.append, _times(2), pause_s=0)
    assert shown == [words_of(OVERVIEW), ""]
    assert reading_of(OVERVIEW) == _READS


def _times(count: int) -> Callable[[], bool]:
    left = [True] * count
    return lambda: bool(left) and left.pop()


def test_the_command_of_the_status_line_survives_any_path() -> None:
    assert status_line(Path("/it's here/line"))["command"].startswith("cat '/it'\"'\"'s here/line'")
