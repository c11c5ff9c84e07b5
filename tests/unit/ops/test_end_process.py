"""A process ends without the teardown of its interpreter."""

from __future__ import annotations

import subprocess
import sys

_PROGRAM = """
import atexit
from ops.exit_codes import ExitCode, end_process

atexit.register(print, "teardown")
print("last line", end="")
end_process(ExitCode.SWAPPED)
"""


def test_output_and_exit_code_arrive_and_no_teardown_runs() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (76, "last line", "")
