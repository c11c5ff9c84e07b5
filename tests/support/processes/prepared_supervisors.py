"""Starts supervisors of stand-ins in processes that have the imports already.

A process of the session imports the supervisor once, a second and a half of processor time; each
supervisor is a fork of it. A test that runs code ahead of the program, or plants constants, starts
the program itself.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes.fork_server import ForkedProcess, ForkedProcesses, next_request


class PreparedSupervisors:
    """Starts one supervisor after the other."""

    def __init__(self) -> None:
        self._processes = ForkedProcesses(__name__)

    def start(self, env: Mapping[str, str], stdout: Path, stderr: Path) -> ForkedProcess:
        return self._processes.start(env, [stdout, stderr])

    def close(self) -> None:
        self._processes.close()


def _serve(codes: Path) -> None:
    """Fork a process for each request; only the forked ones get past the server's loop."""
    from ops.settings.settings import load_settings  # noqa: PLC0415 - for this process only
    from ops.supervisor.serve import serve  # noqa: PLC0415
    from tests.support.processes.stand_in_serve import stand_ins  # noqa: PLC0415

    if next_request(codes) is not None:
        sys.exit(serve(load_settings(), stand_ins))


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
