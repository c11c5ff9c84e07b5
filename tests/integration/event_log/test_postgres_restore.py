"""A log that PostgreSQL's own tools dump and restore."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from domain.values import StreamName
from ops.cli.main import build_app
from ops.clock import SystemClock
from ops.log.sql_event_log import open_log
from tests.support.builders.job_events import draft, worker_event
from tests.support.builders.log_files import fill
from tests.support.polling import scaled
from tests.support.processes.postgres import postgres_programs

TOOL_WITHIN_S = 60.0


def _run(*arguments: str) -> Result:
    app = build_app({"log"})
    return CliRunner().invoke(app, arguments)


def _run_tool(name: str, *arguments: str) -> None:
    program = postgres_programs() / name
    subprocess.run(
        [program, *arguments], check=True, capture_output=True, timeout=scaled(TOOL_WITHIN_S)
    )


def test_a_restored_dump_serves_again_once_it_is_signed(
    postgres_url: str, bare_postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMANTIC_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("SEMANTIC_LOG__URL", postgres_url)
    dump = str(tmp_path / "log.dump")
    with open_log(postgres_url, clock=SystemClock()) as log:
        fill(log, 2)
        dumped = log.head().position
    _run_tool("pg_dump", "--format=custom", f"--file={dump}", postgres_url)
    with open_log(postgres_url, clock=SystemClock()) as log:
        log.append(StreamName("worker-1"), [draft(worker_event())], expected_version=0)
    assert _run("log", "show", "--sign").exit_code == 0

    _run_tool("pg_restore", "--exit-on-error", f"--dbname={bare_postgres_url}", dump)
    monkeypatch.setenv("SEMANTIC_LOG__URL", bare_postgres_url)
    assert "the log has lost the events" in _run("log", "verify").stderr
    assert _run("log", "show", "--sign").exit_code == 1
    signed = _run("log", "restore", "--sign")
    assert signed.exit_code == 0, signed.output
    assert f"{dumped} events verify" in signed.stdout
    assert _run("log", "verify").exit_code == 0
    with open_log(bare_postgres_url, clock=SystemClock()) as log:
        log.append(StreamName("worker-1"), [draft(worker_event())], expected_version=0)
        assert log.head().position == dumped + 1
    assert _run("log", "show", "--sign").exit_code == 0
