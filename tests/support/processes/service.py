"""A whole service in processes of its own, as a user would start it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

import httpx
import psutil

from ops.supervisor.serve_record import read_record
from tests.support.models.kept_kernels import compiled
from tests.support.polling import scaled, wait_until
from tests.support.processes import prepared_services
from tests.support.processes.fork_server import ForkedProcess

READY_WITHIN_S = 180.0
STOPPED_WITHIN_S = 120.0
COMMAND_WITHIN_S = 600.0


class Service:
    """``semantic serve`` on a free loopback port with its own data directory.

    Args:
        data_dir: The data directory.
        env: Further environment variables.
        command: Arguments of Python; a variant of the service replaces the default.
        python: The interpreter; that of the tests by default.
        directory: The working directory; that of the tests by default.
        cold: Whether each process starts as a program and does its imports itself.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        env: dict[str, str] | None = None,
        command: tuple[str, ...] = ("-m", "ops.cli.main", "serve"),
        python: str = sys.executable,
        directory: Path | None = None,
        cold: bool = False,
    ) -> None:
        self.data_dir = data_dir
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        self.log_file = data_dir.parent / f"{data_dir.name}.serve.log"
        self._env = env or {}
        self._command = (python, *command)
        self._directory = directory
        can_fork = directory is None and prepared_services.can_prepare(self._command, self._env)
        self._is_prepared = can_fork and not cold
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    def __enter__(self) -> Self:
        """Start it; the end of the block stops it, or kills it after an error."""
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.process.poll() is None:
            if kind is None:
                self.stop()
            else:
                self.kill()

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers with the API key, if the service has one."""
        key = self._env.get("SEMANTIC_API_KEY")
        return {"x-api-key": key} if key else {}

    @property
    def process(self) -> subprocess.Popen[bytes] | ForkedProcess:
        assert self._process is not None, "not started"
        return self._process

    def start(self) -> Service:
        # Without TMPDIR too, as most users start it: it then has a directory of its own.
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith("SEMANTIC_") and key != "TMPDIR"
        }
        env |= {
            "SEMANTIC_DATA_DIR": str(self.data_dir),
            "SEMANTIC_SERVER__PORT": str(self.port),
            # Its imports would compete with the test for the processors.
            "SEMANTIC_JOBS__WORKER_STANDBY": "false",
            # Pinned: what is free differs from run to run, and a measure takes time.
            "SEMANTIC_ENGINE__KV_BUDGET_MB": "1024",
        } | self._env
        _share_compiled_kernels(self.data_dir)
        self._process = self._started(env)
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def _started(self, env: dict[str, str]) -> subprocess.Popen[bytes] | ForkedProcess:
        if self._is_prepared:
            return prepared_services.start(self._command[2:], env, self.log_file)
        with self.log_file.open("ab") as log:
            return subprocess.Popen(
                self._command,
                cwd=self._directory,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_ready(self, within_s: float = READY_WITHIN_S) -> None:
        with httpx.Client(
            base_url=self.base_url, timeout=scaled(5), headers=self.headers
        ) as client:

            def status() -> int:
                assert self.process.poll() is None, f"it has ended:\n{self.log()}"
                return client.get("/health/ready").status_code

            wait_until(
                status,
                lambda code: code == 200,
                within_s=within_s,
                what="a ready service",
                ignore=httpx.HTTPError,
                describe=self.log,
                look_every_s=0.1,  # it takes seconds, and a look takes processor time from it
            )

    def wait_taken_over(self) -> None:
        """Wait until the parts are those of this supervisor, and ready.

        The parts of a killed one answer until then.
        """

        def is_own() -> bool:
            record = read_record(self.data_dir)
            return record is not None and record.pid == self.process.pid and record.ready

        wait_until(is_own, within_s=READY_WITHIN_S, what="the new parts", describe=self.log)

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")[-8000:]

    def part(self, name: str) -> psutil.Process:
        """Return the process of a part: the recorded one, or the child that runs the module.

        A worker that was a standby has another command line than one that was started cold.
        """
        record = read_record(self.data_dir)
        part = record.parts.get(name.removeprefix("ops.").partition(".")[0]) if record else None
        if part is not None:
            assert part.is_alive(), f"{name} has ended:\n{self.log()}"
            return psutil.Process(part.pid)
        for child in psutil.Process(self.process.pid).children(recursive=True):
            if any(argument.startswith(name) for argument in child.cmdline()[1:]):
                return child
        raise AssertionError(f"no {name} among the children:\n{self.log()}")

    def kill_part(self, name: str) -> None:
        """Kill a part and wait for its end, so that only its successor can answer."""
        part = self.part(name)
        part.kill()
        part.wait(scaled(STOPPED_WITHIN_S))

    def semantic(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a ``semantic`` command for this data directory, with further variables."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("SEMANTIC_")}
        env |= {"SEMANTIC_DATA_DIR": str(self.data_dir)} | variables
        command = (sys.executable, "-m", "ops.cli.main", *words)
        if prepared_services.can_prepare(command, variables):
            return prepared_services.run(words, env)
        return subprocess.run(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(COMMAND_WITHIN_S),
        )

    def descendants(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(scaled(STOPPED_WITHIN_S))
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not stop:\n{self.log()}") from None

    def kill(self) -> None:
        children = self.descendants() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait(scaled(60))
        for child in children:
            if child.is_running():
                child.kill()


def _share_compiled_kernels(data_dir: Path) -> None:
    """Let the services of all tests share what MLX compiles with the processes of the tests."""
    shared, own = compiled(), data_dir / "tmp"
    for directory in (shared, own):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (own / "mlx").symlink_to(shared)


def free_port() -> int:
    """Return a free loopback port outside the range of ephemeral ports.

    Linux gives clients ephemeral ports from 32768 up, other systems from 49152. Such a port could
    be taken between this call and the start of the service, or its restart.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")
