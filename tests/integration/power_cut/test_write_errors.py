"""Syncs and writes that fail: what was answered stays, and the log verifies.

``strace`` makes the system calls of a process fail from the n-th on, for as many calls as wanted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from domain.values import StreamName, digest_of
from ops.clock import SystemClock
from ops.log.migrate import upgrade
from ops.log.sql_event_log import open_log
from tests.support.builders.log_files import verify
from tests.support.polling import scaled

APPENDS = 12
WITHIN_S = 300.0
SYNCS = "fsync,fdatasync"
WRITES = "pwrite64"


@pytest.fixture
def strace() -> str:
    program = shutil.which("strace")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have strace")
        pytest.skip("there is no strace")
    if subprocess.run([program, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine does not let processes be traced")
    return program


@pytest.mark.parametrize(
    ("calls", "error", "first"),
    [
        (SYNCS, "EIO", 4),
        *(
            pytest.param(calls, error, first, marks=pytest.mark.nightly)
            for calls, error in ((SYNCS, "EIO"), (WRITES, "EIO"), (WRITES, "ENOSPC"))
            for first in (1, 2, 3, 5, 8, 13, 21, 34)
        ),
    ],
)
def test_what_was_appended_before_an_error_stays(
    tmp_path: Path, strace: str, calls: str, error: str, first: int
) -> None:
    url = f"sqlite:///{tmp_path / 'events.sqlite3'}"
    upgrade(url)
    done = subprocess.run(
        [
            *(strace, "-f", "-qq", "-o", os.devnull, "--seccomp-bpf"),
            *("-e", f"trace={calls}", "-e", f"inject={calls}:error={error}:when={first}+"),
            *(sys.executable, "-m", "tests.support.processes.log_appender", url, "a", str(APPENDS)),
        ],
        capture_output=True,
        text=True,
        timeout=scaled(WITHIN_S),
        check=False,
    )
    answered = [int(line) for line in done.stdout.split()]
    assert done.returncode == (0 if len(answered) == APPENDS else 1), done.stderr
    if done.returncode:
        # SQLite names the cause where it can: not of each file that it writes.
        kinds = ("LogUnavailable", "DiskFull") if error == "ENOSPC" else ("LogUnavailable",)
        assert any(f"domain.errors.{kind}:" in done.stderr for kind in kinds), done.stderr
    verify(url)
    with open_log(url, clock=SystemClock()) as log:
        for number in answered:
            assert [one.type for one in log.load(StreamName(f"job-a-{number}"))]
            text = f"a {number}".encode()
            assert log.get(digest_of(text)) == text
        # The log is written again once the disk answers.
    again = subprocess.run(
        [sys.executable, "-m", "tests.support.processes.log_appender", url, "b", "1"],
        capture_output=True,
        timeout=scaled(WITHIN_S),
        check=False,
    )
    assert again.returncode == 0, again.stderr
    verify(url)
