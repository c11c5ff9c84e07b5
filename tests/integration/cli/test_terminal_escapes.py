"""Commands on a real terminal, against a service whose every text is hostile."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.hostile_text import HOSTILE, controls
from tests.support.polling import scaled
from tests.support.processes import stand_in_jobs
from tests.support.processes.stand_in_jobs import StandInJobs

_ROOT = Path(__file__).parents[3]
_DEADLINE_S = 60


class HostileJobs(StandInJobs):
    """Answers with hostile names and texts."""

    def job(self, status: str = "completed") -> dict[str, Any]:
        output = {"text": HOSTILE, "thinking": HOSTILE}
        hostile = {"model": HOSTILE, "protocol": HOSTILE, "agent": HOSTILE, "output": output}
        return super().job(status) | hostile | {"stop_reason": HOSTILE}


@pytest.fixture(autouse=True)
def _hostile_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ({**item, "text": HOSTILE} if "text" in item else item for item in stand_in_jobs.ITEMS)
    monkeypatch.setattr(stand_in_jobs, "ITEMS", list(texts))


def _variables(home: Path, port: int) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "SEMANTIC" not in name.upper()}
    return kept | {
        "HOME": str(home),
        "PYTHONPATH": str(_ROOT),
        "SEMANTIC_DATA_DIR": str(home / "data"),
        "SEMANTIC_SERVER__PORT": str(port),
        "TERM": "xterm",
    }


def _on_terminal(home: Path, port: int, *words: str) -> str:
    """Return what a command writes to its terminal."""
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "ops.cli.main", *words],
        env=_variables(home, port),
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
    ) as process:
        os.close(slave)
        shown = b""
        try:
            while piece := os.read(master, 65_536):
                shown += piece
        except OSError:  # the other side is closed
            pass
        process.wait(scaled(_DEADLINE_S))
    os.close(master)
    return shown.decode().replace("\r\n", "\n")


def _logs(home: Path) -> None:
    directory = home / "data" / "logs"
    directory.mkdir(parents=True)
    (directory / "00000001.log").write_text(f"{HOSTILE}\n")


@pytest.mark.parametrize(
    "words",
    [
        ("run", "hello"),
        ("jobs", "ls"),
        ("jobs", "show", "job-1"),
        ("jobs", "show", "job-1", "--json"),
        ("jobs", "show", "job-1", "--follow"),
    ],
)
def test_nothing_from_the_service_controls_the_terminal(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    with HostileJobs() as api:
        shown = _on_terminal(tmp_path, api.port, *words)
    assert "\\u001b]0;owned" in shown
    assert controls(shown) == []


def test_log_lines_do_not_control_the_terminal(tmp_path: Path) -> None:
    _logs(tmp_path)
    shown = _on_terminal(tmp_path, 1, "logs")
    assert "owned" in shown
    assert controls(shown) == []


def test_pipe_gets_the_text_of_the_model_as_it_is(tmp_path: Path) -> None:
    with HostileJobs() as api:
        found = subprocess.run(
            [sys.executable, "-P", "-m", "ops.cli.main", "run", "hello"],
            env=_variables(tmp_path, api.port),
            capture_output=True,
            check=True,
            timeout=scaled(_DEADLINE_S),
        )
    assert found.stdout == (HOSTILE * 3 + "\n").encode()
