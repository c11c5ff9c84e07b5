"""A running job as an overview, in its stream and in a terminal."""

from __future__ import annotations

import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from typing import Any

import httpx
import pytest

from tests.support.polling import wait_until
from tests.support.processes.service import Service

WAIT_S = 60.0


@pytest.fixture
def job(endless: Service) -> Iterator[str]:
    body = {"prompt": "go on", "max_tokens": 100_000, "agent_id": "watched"}
    answer = httpx.post(f"{endless.base_url}/v1/jobs", json=body, timeout=WAIT_S)
    job_id = str(answer.raise_for_status().json()["id"])
    yield job_id
    httpx.post(f"{endless.base_url}/v1/jobs/{job_id}/cancel", timeout=WAIT_S)


def test_running_job_shows_its_worker_and_its_tokens(endless: Service, job: str) -> None:
    def rows() -> list[dict[str, Any]]:
        found = httpx.get(f"{endless.base_url}/admin/overview", timeout=WAIT_S).json()
        return [row for row in found["running"] if row["job"] == job and row["generated_tokens"]]

    (row,) = wait_until(rows)
    assert (row["agent"], row["phase"], row["model"]) == ("watched", "decode", "semantic-demo")
    assert row["worker"].startswith("worker-")
    assert row["read_tokens"] == row["prompt_tokens"] > 0
    with httpx.stream("GET", f"{endless.base_url}/admin/overview/stream", timeout=WAIT_S) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        data = (line[6:] for line in reply.iter_lines() if line.startswith("data: "))
        first, second = json.loads(next(data)), json.loads(next(data))
    assert first["running"][0]["generated_tokens"] < second["running"][0]["generated_tokens"]


def test_snapshot_for_a_pipe_and_as_json(endless: Service, job: str) -> None:
    plain = _command(endless, "top").stdout
    assert job[-8:] in plain
    assert "watched  decode" in plain
    assert "\x1b" not in plain
    shown = json.loads(_command(endless, "top", "--json").stdout)
    assert [row["job"] for row in shown["running"]] == [job]


def test_log_lines_of_the_parts_are_kept(endless: Service, job: str) -> None:
    lines = [json.loads(line) for line in _command(endless, "logs", "--json").stdout.splitlines()]
    assert {"api", "worker", "broker"} <= {line["part"] for line in lines}
    assert any(line["message"] == "model_ready" for line in lines)
    assert "go on" not in str(lines)
    about = _command(endless, "logs", "--job", job, "--json").stdout.splitlines()
    assert all(job in line for line in about)


def test_terminal_shows_the_job_and_cancels_it(endless: Service, job: str) -> None:
    with _terminal(endless, rows=30, columns=100) as screen:
        screen.wait_for(job[-8:])
        screen.press("c")
        screen.wait_for("press c again")
        screen.press("c")
        screen.wait_for("is cancelled")
        screen.press("q")
        assert screen.process.wait(WAIT_S) == 0
    found = httpx.get(f"{endless.base_url}/v1/jobs/{job}", timeout=WAIT_S).json()
    assert found["cancel_requested"] or found["status"] == "cancelled"


class _Screen:
    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._seen = ""

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until a text that is written in one piece has appeared."""
        while text not in self._seen:
            self._seen += os.read(self._master, 65_536).decode(errors="replace")


@contextmanager
def _terminal(service: Service, *, rows: int, columns: int) -> Iterator[_Screen]:
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "ops.cli.main", "top", "--data-dir", str(service.data_dir)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm-256color", "NO_COLOR": "1"},
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield _Screen(process, master)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _command(service: Service, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ops.cli.main", *arguments, "--data-dir", str(service.data_dir)],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
        stdin=subprocess.DEVNULL,
    )
