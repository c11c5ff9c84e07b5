"""Parts of a service as on machines of their own: they share only log and broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.polling import scaled
from tests.support.processes import prepared_services
from tests.support.processes.fork_server import ForkedProcess

STOPPED_WITHIN_S = 60.0


class Machine:
    """One part with its own data directory.

    Args:
        part: ``api`` or ``worker``.
        directory: Directory of this machine; does not exist yet.
        env: Settings that the machines share.
        command: Arguments of Python that start the part; the part of the CLI by default.
    """

    def __init__(
        self, part: str, directory: Path, env: dict[str, str], *, command: Sequence[str] = ()
    ) -> None:
        self._part = part
        arguments = command or ("-m", "ops.cli.main", "serve", "--only", part)
        self._command = (sys.executable, *arguments)
        self._data_dir = directory / "data"
        self._log_file = directory / "log"
        self._env = env | {"SEMANTIC_DATA_DIR": str(self._data_dir)}
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None
        directory.mkdir()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("SEMANTIC_")}
        env |= self._env
        if prepared_services.can_prepare(self._command, self._env):
            self._process = prepared_services.start(
                self._command[2:], env, self._log_file, kind="part"
            )
            return
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log_tail(self) -> str:
        """Return the end of its log, for the message of a failed test."""
        return f"--- {self._part} {self._data_dir}\n{self._log_file.read_text()[-4000:]}"

    def stop(self) -> int | None:
        """Send SIGTERM and return the exit code."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(scaled(STOPPED_WITHIN_S))
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Send SIGKILL and wait."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait(scaled(STOPPED_WITHIN_S))
