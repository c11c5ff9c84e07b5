"""Ends the processes that tests start together with the test process, whatever ends it.

Each test process, also each worker of pytest-xdist, starts one watcher, which holds the read end of
a pipe. At the end of file the watcher kills every process that carries the mark of this test
process in its environment, and the children of those. Children inherit the mark however they are
started: on any thread, in a session of their own, by another child. A process whose whole
environment is given needs ``mark()``. redis-server overwrites its environment; ``PrivateRedis``
lets it end with its parent.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from tests.support.polling import unscaled

if TYPE_CHECKING:
    import pytest

#: Variable with the ids of the test processes above a process, each with a slash behind it.
_MARK = "TEST_PROCESSES_ABOVE"
_ROOT = Path(__file__).parents[3]
#: Looks for processes that are left, and the longest wait for the end of those found by one look.
LOOKS_MAX = 60
_HOLD_S = 1.0


def pytest_configure(config: pytest.Config) -> None:
    """Start the watcher; ``--fast`` runs no test that starts processes."""
    if config.getoption("--fast", default=False):
        return
    read_end, write_end = os.pipe()
    lifeline = os.fdopen(write_end, "wb")
    # A fork without exec would keep the pipe open.
    os.register_at_fork(after_in_child=lifeline.close)
    mark = f"{os.environ.get(_MARK, '')}{uuid.uuid4().hex}/"
    watcher = subprocess.Popen(
        [sys.executable, "-m", __name__, str(read_end), mark],
        cwd=_ROOT,
        pass_fds=(read_end,),
        start_new_session=True,  # Ctrl-C is for the tests
    )
    os.close(read_end)
    os.environ[_MARK] = mark

    def end() -> None:
        lifeline.close()
        watcher.wait()

    config.add_cleanup(end)


def mark() -> dict[str, str]:
    """Return what the environment of a child needs if it does not inherit ours."""
    return {name: value for name, value in os.environ.items() if name == _MARK}


def end_marked(wanted: str) -> bool:
    """Kill the processes below a test process until there is none.

    Returns:
        Whether none is left. A process that the kernel holds, or that new ones replace as fast as
        they are killed, is given up after ``LOOKS_MAX`` looks.
    """
    for _ in range(LOOKS_MAX):
        if not (found := list(_marked(wanted))):
            return True
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, timeout=unscaled(_HOLD_S, reason="a pause between two looks"))
    return False


def _marked(wanted: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        try:
            if process.environ().get(_MARK, "").startswith(wanted):
                yield from (process, *process.children(recursive=True))
        except psutil.Error:  # it has ended, or belongs to another user
            continue


if __name__ == "__main__":
    os.read(int(sys.argv[1]), 1)
    sys.exit(0 if end_marked(sys.argv[2]) else "processes of the tests are left")
