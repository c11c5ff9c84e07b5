"""Programs from npm, installed once beside the environment."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.polling import scaled

ROOT = Path(__file__).parents[3]
#: Accepted by pi (from 22.19), Qwen Code (from 22) and OpenClaw (from 24.16).
NODE = "24.22.3"
_INSTALLED_WITHIN_S = 300.0


def install(package: str, version: str, prefix: Path, program: str, *, path: str = "") -> Path:
    """Install a package and return its program; one test process installs, the others wait.

    Args:
        package: Its name at npm.
        version: The exact version.
        prefix: The directory that holds the package.
        program: Pattern of the program's path below ``node_modules``.
        path: The PATH of the installation, with another Node; by default that of this process.

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
            env={**os.environ, "PATH": path or os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
            timeout=scaled(_INSTALLED_WITHIN_S),
        )  # fmt: skip
        found = sorted(prefix.glob(f"node_modules/{program}"))
        if done.returncode != 0 or not found:
            missing(f"npm could not install {package}: {done.stderr[-500:]}")
        return found[0]


def new_node() -> Path:
    """Return the directory of a Node that every agent accepts; only Linux gets one from npm."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine())
    if sys.platform == "linux" and machine:
        package, prefix = f"node-linux-{machine}", ROOT / ".venv" / "node" / NODE
        return install(package, NODE, prefix, f"{package}/bin/node").parent
    found = shutil.which("node")
    if found is None:
        missing(f"an agent needs Node {NODE}")
    return Path(found).parent


def missing(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
