"""Programs from npm, installed once beside the environment."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.polling import scaled

ROOT = Path(__file__).parents[3]
_INSTALLED_WITHIN_S = 300.0


def install(package: str, version: str, prefix: Path, program: str) -> Path:
    """Install a package and return its program; one test process installs, the others wait.

    Args:
        package: Its name at npm.
        version: The exact version.
        prefix: The directory that holds the package.
        program: Pattern of the program's path below ``node_modules``.

    Raises:
        pytest.skip.Exception: There is no npm, or it fails; in CI the test fails instead.
    """
    prefix.mkdir(parents=True, exist_ok=True)
    with (prefix / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = sorted(prefix.glob(f"node_modules/{program}"))
        if found:
            return found[0]
        npm = shutil.which("npm")
        if npm is None:
            missing("npm is not installed")
        (prefix / "package.json").write_text('{"name": "tests", "private": true}')
        done = subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--include=optional",
             f"{package}@{version}"],
            cwd=prefix,
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(_INSTALLED_WITHIN_S),
        )  # fmt: skip
        found = sorted(prefix.glob(f"node_modules/{program}"))
        if done.returncode != 0 or not found:
            missing(f"npm could not install {package}: {done.stderr[-500:]}")
        return found[0]


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
