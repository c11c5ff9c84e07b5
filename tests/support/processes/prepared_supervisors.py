"""Starts supervisors of stand-ins in processes that have the imports already.

A process of the session imports the supervisor once, a second and a half of processor time; each
supervisor is a fork of it. A test that runs code ahead of the program, or plants constants, starts
the program itself.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.polling import wait_until
from tests.support.processes.fork_server import ForkServer, become


class ForkedProcess:
    """What a test does with a ``Popen``; the process is the child of another one."""

    def __init__(self, pid: int, code: Path) -> None:
        self.pid = pid
        self._code = code

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


class PreparedSupervisors:
    """Starts one supervisor after the other."""

    def __init__(self) -> None:
        self._codes = tempfile.TemporaryDirectory()
        self._server = ForkServer(__name__, self._codes.name)

    def start(self, env: Mapping[str, str], stdout: Path, stderr: Path) -> ForkedProcess:
        pid = self._server.ask({"env": dict(env), "files": [os.devnull, str(stdout), str(stderr)]})
        return ForkedProcess(pid, Path(self._codes.name, str(pid)))

    def close(self) -> None:
        self._server.close()
        self._codes.cleanup()


def _serve(codes: Path) -> None:
    """Fork a process for each request; only the forked ones get past the loop before the end."""
    from ops.settings.settings import load_settings  # noqa: PLC0415 - for this process only
    from ops.supervisor.serve import serve  # noqa: PLC0415
    from tests.support.processes.stand_in_serve import stand_ins  # noqa: PLC0415

    def reap(_number: int, _frame: object) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            new = codes / f"{pid}.new"
            new.write_text(str(os.waitstatus_to_exitcode(status)))
            new.rename(codes / str(pid))

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        child = os.fork()
        if not child:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            become(**json.loads(line))
            sys.exit(serve(load_settings(), stand_ins))
        (codes / str(child)).unlink(missing_ok=True)  # of an earlier process with this number
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(child, flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
