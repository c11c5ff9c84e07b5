"""The slow disk is offered where a process may be traced, and fails where it has no effect."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.chaos.faults import FaultInjector, may_trace
from bench.chaos.plan import Fault, PlannedFault

REFUSED = "strace: attach: ptrace(PTRACE_SEIZE, 1): Operation not permitted"


@pytest.fixture
def part() -> Iterator[subprocess.Popen[bytes]]:
    """A process in the place of every part of the service."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


class OnePart:
    """A service whose parts are one process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def part(self, name: str) -> psutil.Process:
        del name
        return psutil.Process(self._process.pid)


def slow_down(
    part: Any, directory: Path, monkeypatch: pytest.MonkeyPatch, tracer: str, lasts_s: float = 60
) -> None:
    """Inject the fault with a script in the place of ``strace``."""
    program = directory / "strace"
    program.write_text(f"#!/bin/sh\n{tracer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    planned = PlannedFault(
        number=1, fault=Fault.SLOW, gap_s=0, hasty=False, lasts_s=lasts_s, seed=1
    )
    no_streams: Any = None
    service: Any = OnePart(part)
    FaultInjector(service, no_streams).inject(planned)


@pytest.mark.parametrize(
    ("scope", "user", "allowed"),
    [(None, 1000, True), ("0", 1000, True), ("1", 1000, False), ("1", 0, True), ("3", 0, False)],
)
def test_process_is_traced_as_the_kernel_allows(
    tmp_path: Path, scope: str | None, user: int, *, allowed: bool
) -> None:
    file = tmp_path / "ptrace_scope"
    if scope is not None:
        file.write_text(f"{scope}\n")
    assert may_trace(file, user) == allowed


def test_tracer_that_may_not_trace_fails_the_run_with_its_message(
    part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AssertionError, match="Operation not permitted"):
        slow_down(part, tmp_path, monkeypatch, f"echo '{REFUSED}' >&2; exit 1")


def test_tracer_that_runs_to_the_end_of_the_fault_is_stopped(
    part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = psutil.Process().children()
    slow_down(part, tmp_path, monkeypatch, "exec sleep 60", lasts_s=0.1)
    assert psutil.Process().children() == before


def test_tracer_that_ends_with_its_part_is_no_failure(
    part: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = f"ps -o stat= -p {part.pid} | grep -q Z"
    slow_down(part, tmp_path, monkeypatch, f"kill -9 {part.pid}; until {is_over}; do :; done")
