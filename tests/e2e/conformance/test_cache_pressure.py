"""Prefixes stay known after an abort and beside other sessions, by the commands of cache-pressure.

They need a newer Python than the one of the tests, and get an environment of their own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.npm import missing
from tests.support.polling import scaled
from tests.support.processes.service import Service

pytestmark = pytest.mark.nightly
PINNED = ("cache-pressure==0.6.3", "requests==2.34.2")
INTERPRETERS = ("python3.12", "python3.13", "python3.14")
#: A prefix of the demo model's size. Its answers end before the 500 tokens of the default.
ABORT = ("--context-tokens", "3000", "--thinking-tokens", "12", "--max-tokens", "2000")
SESSIONS = 4
#: Turns of a session, by the lengths below.
STEPS = 10
AGENTS = (
    *("--sessions", str(SESSIONS), "--main-tokens", "3000", "--step-tokens", "300"),
    *("--sub-tokens", "1000", "--sub-windows", "2", "--finalize-tokens", "200"),
    # Its second verdict compares single times, which depend on what else the machine does.
    *("--max-tokens", "40", "--no-viz", "--ttft-ratio", "1000"),
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the installed commands."""
    # A shim of pyenv may be there for a version that is not selected.
    found = [one for one in INTERPRETERS if shutil.which(one) and _ends_well([one, "-c", ""])]
    if not found:
        missing(f"none of {', '.join(INTERPRETERS)} is installed")
    place = tmp_path_factory.mktemp("cache-pressure")
    programs = place / "bin"
    commands = (
        [found[0], "-m", "venv", str(place)],
        [str(programs / "pip"), "install", "--quiet", *PINNED],
    )
    if not all(_ends_well(one) for one in commands):
        missing(f"pip could not install {PINNED[0]}")
    return programs


def _ends_well(command: list[str]) -> bool:
    return subprocess.run(command, check=False, timeout=scaled(300)).returncode == 0


def measured(program: Path, service: Service, report: Path, *arguments: str) -> dict[str, Any]:
    """Run a command against the service, and return the summary of its report."""
    done = subprocess.run(
        [program, "--base-url", f"{service.base_url}/v1", "--output", report, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(600),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary: dict[str, Any] = json.loads(report.read_text())["summary"]
    return summary


def test_a_prefix_is_known_after_an_abort(programs: Path, service: Service, tmp_path: Path) -> None:
    found = measured(programs / "abort-sim", service, tmp_path / "report.json", *ABORT)
    assert (found["ok"], found["runs"]) == (2, 2)


def test_sessions_that_take_turns_keep_their_prefixes(
    programs: Path, service: Service, tmp_path: Path
) -> None:
    found = measured(programs / "agent-sim", service, tmp_path / "report.json", *AGENTS)
    continued = SESSIONS * (STEPS - 1)
    assert (found["main_reused"], found["main_total"]) == (continued, continued)
    assert (found["finalize_ok"], found["finalize_total"]) == (SESSIONS, SESSIONS)
