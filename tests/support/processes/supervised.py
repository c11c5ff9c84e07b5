"""A supervisor whose parts are stand-ins, in a directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil

from tests.support.polling import wait_until
from tests.support.processes.fork_server import ForkedProcess
from tests.support.processes.prepared_supervisors import PreparedSupervisors

DEADLINE_S = 240.0
_ROOT = Path(__file__).parents[3]
WITH_STANDBY = {"SEMANTIC_JOBS__WORKER_STANDBY": "true"}


def until(holds: Callable[[], Any]) -> Any:
    return wait_until(holds, within_s=DEADLINE_S)


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


class Stage:
    """A directory in which one supervisor after the other may run."""

    def __init__(self, directory: Path, prepared: PreparedSupervisors) -> None:
        self.directory = directory
        self.data_dir = directory / "data"
        self.started: list[subprocess.Popen[str] | ForkedProcess] = []
        self._prepared = prepared
        self.seen: set[int] = set()

    def serve(
        self, before: Callable[[], object] | None = None, /, **variables: str
    ) -> subprocess.Popen[str] | ForkedProcess:
        """Start a supervisor; ``before`` runs in its process, ahead of the program."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("SEMANTIC_")}
        environment |= {
            "HOME": str(self.directory),
            "STAND_IN_DIR": str(self.directory),
            "SEMANTIC_DATA_DIR": str(self.data_dir),
            "SEMANTIC_SERVER__PORT": "0",
            "SEMANTIC_SERVER__DRAIN_S": "5",
            "SEMANTIC_JOBS__WORKER_STANDBY": "false",
        }
        environment |= variables
        out, err = (self._output(name, len(self.started)) for name in ("stdout", "stderr"))
        process = (
            self._prepared.start(environment, out, err)
            # Planted constants, and what runs ahead of the program, are of its start.
            if before is None and "PYTHONPATH" not in variables
            else _program(before, environment, out, err)
        )
        self.started.append(process)
        return process

    def ready(self) -> dict[str, Any]:
        def record() -> dict[str, Any] | None:
            path = self.data_dir / "serve.json"
            values: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
            return values if values.get("ready") else None

        values: dict[str, Any] = until(record)
        self.seen |= {part["pid"] for name, part in values["parts"].items() if name != "standby"}
        # A stand-in for the api does not wait for the worker as the real one does.
        until(lambda: self.seen <= {pid for _, pid in self.journal("start")})
        return values

    def journal(self, word: str) -> list[tuple[str, int]]:
        path = self.directory / "journal"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [(role, int(pid)) for role, state, pid in lines if state == word]

    def starts_of(self, role: str) -> list[int]:
        return [pid for who, pid in self.journal("start") if who == role]

    def standby(self) -> int:
        """Wait for a standby and return its pid."""

        def waiting() -> int | None:
            part = self.ready()["parts"].get("standby")
            pid: int | None = part and part["pid"]
            return pid if ("worker", pid) in self.journal("standby") else None

        return int(until(waiting))

    def text(self, name: str) -> str:
        """Return what the latest supervisor wrote; an earlier one may still be writing."""
        return self._output(name, len(self.started) - 1).read_text()

    def _output(self, name: str, number: int) -> Path:
        return self.directory / f"{name}.{number}"

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()


def _program(
    before: Callable[[], object] | None, env: Mapping[str, str], out: Path, err: Path
) -> subprocess.Popen[str]:
    with out.open("w") as stdout, err.open("w") as stderr:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.processes.stand_in_serve"],
            cwd=_ROOT,
            env=env,
            stdout=stdout,
            stderr=stderr,
            text=True,
            preexec_fn=before,  # noqa: PLW1509 - these tests start no thread
        )
