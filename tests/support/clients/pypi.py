"""Programs from PyPI, each installed once in an environment of its own beside this one."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from tests.support.clients import npm
from tests.support.polling import scaled

_INSTALLED_WITHIN_S = 900.0


def install(name: str, program: str, *requirements: str) -> Path:
    """Install packages and return a program of theirs; one test process installs, others wait.

    Args:
        name: The directory of the environment; another one for other versions.
        program: Its name in the environment.
        requirements: Packages with exact versions.

    Raises:
        pytest.skip.Exception: pip fails; in CI the test fails instead.
    """
    home = npm.ROOT / ".venv" / name
    home.mkdir(parents=True, exist_ok=True)
    done = home / ".installed"
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _run(sys.executable, "-m", "venv", str(home))
            _run(str(home / "bin" / "python"), "-m", "pip", "install", "-q", *requirements)
            done.touch()
    return home / "bin" / program


def _run(*command: str) -> None:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=scaled(_INSTALLED_WITHIN_S)
    )
    if done.returncode != 0:
        npm.missing(f"{command} failed: {done.stderr[-500:]}")
