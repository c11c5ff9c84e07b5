"""Parts of a service as they run on machines of their own: nothing but log and broker is shared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

STOPPED_WITHIN_S = 60.0


class Machine:
    """One part, with a data directory that no other part has.

    Args:
        part: ``api`` or ``worker``.
        directory: Of this machine.
        env: What the machines share.
    """

    def __init__(self, part: str, directory: Path, env: dict[str, str]) -> None:
        self._part = part
        self._data_dir = directory / "data"
        self._log_file = directory / "log"
        self._env = env | {"SEMANTIC_DATA_DIR": str(self._data_dir)}
        self._process: subprocess.Popen[bytes] | None = None
        directory.mkdir()

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        env = {key: value for key, value in os.environ.items() if not key.startswith("SEMANTIC_")}
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ops.cli.main", self._part],
                env=env | self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """Return the end of what it wrote, for when a test fails."""
        return f"--- {self._part} {self._data_dir}\n{self._log_file.read_text()[-4000:]}"

    def stop(self) -> int | None:
        """Ask for an orderly end and return the exit code."""
        if self._process is None:
            return None
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Pull the plug."""
        assert self._process is not None, "not started"
        self._process.kill()
        self._process.wait(STOPPED_WITHIN_S)
