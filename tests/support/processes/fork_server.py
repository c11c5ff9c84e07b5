"""A process that has imports behind it, and forks itself for each request of a test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.polling import wait_until

_ROOT = Path(__file__).parents[3]


class ForkServer:
    """A running module that reads requests as lines of JSON, and answers each with a line."""

    def __init__(self, module: str, *words: str, env: Mapping[str, str] | None = None) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=_ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._one_asks = threading.Lock()

    def ask(self, request: Mapping[str, Any]) -> int:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        with self._one_asks:
            self._server.stdin.write(json.dumps(request) + "\n")
            self._server.stdin.flush()
            return int(self._server.stdout.readline())

    def close(self) -> None:
        with self._server:
            pass  # the end of its input ends it


class ForkedProcess:
    """What a test does with a ``Popen``; the process is the child of another one."""

    def __init__(self, pid: int, code: Path) -> None:
        self.pid = pid
        self._code = code

    @property
    def returncode(self) -> int | None:
        """Return the exit code once it has ended, negative for a signal."""
        return self.poll()

    def poll(self) -> int | None:
        return int(self._code.read_text()) if self._code.exists() else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait as long as tests wait, whatever ``timeout`` is."""
        del timeout
        return wait_until(self.poll, lambda _: True, within_s=240, what="the end of a supervisor")

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedProcesses:
    """Starts one process after the other as forks of a module that calls ``next_request``."""

    def __init__(self, module: str, *words: str, env: Mapping[str, str] | None = None) -> None:
        self._codes = tempfile.TemporaryDirectory()
        self._server = ForkServer(module, self._codes.name, *words, env=env)

    def start(self, env: Mapping[str, str], files: Sequence[Path], **more: Any) -> ForkedProcess:
        """Start a process with this environment, output and errors."""
        standard = [os.devnull, *map(str, files)]
        pid = self._server.ask({"env": dict(env), "files": standard} | more)
        return ForkedProcess(pid, Path(self._codes.name, str(pid)))

    def close(self) -> None:
        self._server.close()
        self._codes.cleanup()


def next_request(codes: Path) -> dict[str, Any] | None:
    """Fork a process for each request, and return the request in the forked one.

    Args:
        codes: Directory for the exit codes, each in a file that has the number of the process.

    Returns:
        ``None`` in the server, at the end of its input.
    """

    def reap(_number: int, _frame: object) -> None:
        for pid, code in ended_children():
            new = codes / f"{pid}.new"
            new.write_text(str(code))
            new.rename(codes / str(pid))

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        child = os.fork()
        if not child:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            request: dict[str, Any] = json.loads(line)
            become(request.pop("env"), request.pop("files"))
            return request
        (codes / str(child)).unlink(missing_ok=True)  # of an earlier process with this number
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(child, flush=True)  # noqa: T201 - the answer
    return None


def ended_children() -> Iterator[tuple[int, int]]:
    """Yield number and exit code of each child that has ended; does not wait."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def become(env: Mapping[str, str], files: Sequence[str]) -> None:
    """Be the process that a shell starts, with this environment and these standard files."""
    os.environ.clear()
    os.environ.update(env)
    for number, file in enumerate(files):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(opened, number)
        os.close(opened)
