"""``semantic logs``: which lines it prints, and how."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from ops.cli.main import build_app
from ops.data_dir.log_files import LogFiles, LogLimits

JOB = "job-" + "1" * 32
NOW = datetime.now(UTC)


def event(message: str, *, age_s: float = 0, **more: Any) -> str:
    at = (NOW - timedelta(seconds=age_s)).isoformat().replace("+00:00", "Z")
    return json.dumps({"part": "api", "level": "info", "message": message, "timestamp": at} | more)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    files = LogFiles(tmp_path / "logs", LogLimits(file_bytes=300, total_bytes=10**6, keep_s=1e9))
    for line in (
        event("old", age_s=7200),
        event("submitted", job_id=JOB, request_id="req_1"),
        event("preempted", part="worker", job=JOB, level="warning"),
        event("failed", part="worker", level="error", exception="Traceback\n  boom"),
        event("redis is up", part="broker"),
        "no json \x1b[31m at all",
    ):
        files.write(line + "\n")
    return tmp_path


def run(directory: Path, *arguments: str) -> Result:
    return CliRunner().invoke(build_app("logs"), ["logs", "--data-dir", str(directory), *arguments])


def messages(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return [json.loads(line)["message"][:9] for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["old", "submitted", "preempted", "failed", "redis is ", "no json \x1b"]),
        (["--lines", "2"], ["redis is ", "no json \x1b"]),
        (["--part", "worker"], ["preempted", "failed"]),
        (["--part", "redis"], ["redis is "]),
        (["--job", JOB], ["submitted", "preempted"]),
        (["--level", "warning"], ["preempted", "failed", "no json \x1b"]),
        (["--level", "ERROR", "--part", "api"], []),
        (["--since", "1h", "--part", "api"], ["submitted"]),
        (["--since", "2030-01-01T00:00:00+02:00"], []),
    ],
)
def test_options_choose_lines(directory: Path, arguments: list[str], expected: list[str]) -> None:
    assert messages(run(directory, "--json", *arguments)) == expected


def test_plain_lines_control_no_terminal(directory: Path) -> None:
    lines = run(directory).stdout.splitlines()
    assert lines[1].endswith(f"api    info     submitted job_id={JOB} request_id=req_1")
    assert lines[3].endswith("worker error    failed")
    assert lines[4:6] == ["Traceback", "  boom"]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    "arguments", [["--part", "gpu"], ["--level", "loud"], ["--since", "yesterday"]]
)
def test_rubbish_ends_with_one_line(directory: Path, arguments: list[str]) -> None:
    result = run(directory, *arguments)
    assert result.exit_code == 2
    assert len(result.output.splitlines()) == 1


def test_service_that_never_ran_has_no_lines(tmp_path: Path) -> None:
    assert run(tmp_path).output == ""
