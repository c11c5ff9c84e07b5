"""Records the log of another version of the service, for ``tests/fixtures/logs``.

Run as ``python -m tests.support.processes.recorded_log TREE FILE``, where TREE is a checkout of
that version. Its own code serves the demo model, answers requests and is killed while one job runs
and another one waits. The file is the SQLite database as the kill left it, its write-ahead log
included, compressed.
"""

from __future__ import annotations

import argparse
import contextlib
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from ops.adapters.event_log.sqlite_driver import driver_module
from tests.support.polling import wait_until
from tests.support.processes.service import free_port

WITHIN_S = 120.0
TURN = {"role": "user", "content": "Say hello."}
#: Answers that end before the kill, by path.
ENDED: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "/v1/messages",
        {"model": "claude-x", "max_tokens": 6, "temperature": 0, "messages": [TURN]},
    ),
    (
        "/v1/chat/completions",
        {"model": "gpt-x", "max_tokens": 6, "temperature": 0.7, "seed": 7, "messages": [TURN]},
    ),
)
JOB = {"prompt": "Count to a hundred.", "temperature": 0, "agent_id": "counter"}


def record(tree: Path, file: Path) -> None:
    """Write the log of the version in ``tree``."""
    with tempfile.TemporaryDirectory(prefix="log-") as directory:
        data = Path(directory, "data")
        with serving(tree, data) as (service, http):
            for path, body in ENDED:
                http.post(path, json=body).raise_for_status()
            ended = submit(http, JOB | {"max_tokens": 6})
            wait_until(lambda: status(http, ended) == "completed", within_s=WITHIN_S)
            running = submit(http, JOB | {"max_tokens": 100})
            wait_until(lambda: status(http, running) == "running", within_s=WITHIN_S)
            service.send_signal(signal.SIGSTOP)
            for part in service.children(recursive=True):
                if any("worker." in word for word in part.cmdline()[:4]):
                    part.kill()
            submit(http, JOB | {"max_tokens": 4})
        file.write_bytes(lzma.compress(database(data), preset=9 | lzma.PRESET_EXTREME))


@contextlib.contextmanager
def serving(tree: Path, data: Path) -> Iterator[tuple[psutil.Process, httpx.Client]]:
    """Serve with the code of ``tree``, and kill all of it at the end."""
    port = free_port()
    env = {name: value for name, value in os.environ.items() if not name.startswith("SEMANTIC_")}
    env |= {
        "PYTHONPATH": str(tree),
        "SEMANTIC_DATA_DIR": str(data),
        "SEMANTIC_SERVER__PORT": str(port),
    }
    command = [sys.executable, "-m", "ops.cli.main", "serve"]
    with subprocess.Popen(command, cwd=tree, env=env, stdin=subprocess.DEVNULL) as started:
        service = psutil.Process(started.pid)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=WITHIN_S) as http:
            try:
                wait_until(lambda: is_ready(http), within_s=WITHIN_S)
                yield service, http
            finally:
                children = service.children(recursive=True) if service.is_running() else []
                for part in (*children, service):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        part.kill()


def is_ready(http: httpx.Client) -> bool:
    """Return whether the service answers requests."""
    try:
        return http.get("/health/ready").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def submit(http: httpx.Client, body: dict[str, Any]) -> str:
    """Submit a job and return its id."""
    return str(http.post("/v1/jobs", json=body).raise_for_status().json()["id"])


def status(http: httpx.Client, job: str) -> str:
    """Return the status of a job."""
    return str(http.get(f"/v1/jobs/{job}").raise_for_status().json()["status"])


def database(data: Path) -> bytes:
    """Return the database of a killed service as one file."""
    file = data / "events.sqlite3"
    copy = shutil.copytree(data, data.with_name("copy"), ignore=shutil.ignore_patterns("*.sock"))
    with contextlib.closing(driver_module().connect(str(copy / file.name))) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return (copy / file.name).read_bytes()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="recorded_log", description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("file", type=Path)
    chosen = parser.parse_args()
    record(chosen.tree, chosen.file)
