"""Runs the examples of ``docs/examples`` as a reader does: in processes of their own."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

from tests.support.clients.npm import ROOT, missing
from tests.support.polling import scaled
from tests.support.processes.service import Service

EXAMPLES = ROOT / "docs" / "examples"
_INSTALLED_WITHIN_S = 600.0
#: A busy machine may be ten times slower than ours.
ENDED_WITHIN_S = 600.0


def environment(service: Service) -> dict[str, str]:
    """Return the environment of a reader whose service is this one."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("SEMANTIC_")}
    return env | {
        "SERVICE_URL": service.base_url,
        "SEMANTIC_DATA_DIR": str(service.data_dir),
        "SEMANTIC_SERVER__PORT": str(service.port),
        "PYTHONUNBUFFERED": "1",
        "NO_COLOR": "1",
    }


def begin(
    service: Service,
    folder: Path,
    script: str,
    *arguments: str,
    python: Path | str = sys.executable,
    **env: str,
) -> subprocess.Popen[str]:
    """Start a script of ``docs/examples`` in a folder of the reader.

    Args:
        service: What the script uses.
        folder: Its working directory.
        script: Path of the script below ``docs/examples``.
        arguments: Its arguments.
        python: The interpreter; that of the tests by default.
        env: Further variables.
    """
    return subprocess.Popen(
        [str(python), str(EXAMPLES / script), *arguments],
        cwd=folder,
        env=environment(service) | env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(
    service: Service, folder: Path, script: str, *arguments: str, code: int = 0, **env: str
) -> str:
    """Run a script to its end, check its exit code and return its output."""
    return output_of(begin(service, folder, script, *arguments, **env), code=code)


def output_of(running: subprocess.Popen[str], *, code: int = 0) -> str:
    """Wait for the end of a script, check its exit code and return its output."""
    try:
        output, _ = running.communicate(timeout=scaled(ENDED_WITHIN_S))
    finally:
        end(running)
    assert running.returncode == code, output
    return output


def end(running: subprocess.Popen[str]) -> None:
    """Kill a script that still runs."""
    if running.poll() is None:
        running.kill()
    running.wait()
    if running.stdout is not None:
        running.stdout.close()


def interpreter(example: str) -> Path:
    """Return the Python of an example with packages of its own, as its page sets it up.

    The environment is made once for each version of the requirements; one test process makes it,
    the others wait.

    Raises:
        pytest.skip.Exception: The packages cannot be installed; in CI the test fails instead.
    """
    requirements = EXAMPLES / example / "requirements.txt"
    version = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    prefix = ROOT / ".venv" / "examples" / example
    prefix.mkdir(parents=True, exist_ok=True)
    place, python = prefix / version, prefix / version / "bin" / "python"
    with (prefix / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / ".complete").exists():
            venv.create(place, with_pip=True, clear=True)
            done = subprocess.run(
                [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                 "--require-hashes", "-r", str(requirements)],
                capture_output=True,
                text=True,
                check=False,
                timeout=scaled(_INSTALLED_WITHIN_S),
            )  # fmt: skip
            if done.returncode != 0:
                missing(f"the packages of {example} cannot be installed: {done.stderr[-500:]}")
            (place / ".complete").touch()
    return python
