"""Keeps what MLX compiles for a CPU from one run of the tests to the next, as Python keeps its own.

``python -m tests.support.models.kept_kernels take DIRECTORY`` puts it into the temporary directory,
where MLX and the services of tests look for it by name; ``keep`` adds what a run has compiled.
A kernel takes half a second of g++.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_PLACE = "mlx"


def compiled() -> Path:
    """Return the directory in which MLX keeps its kernels, in one for each of its versions."""
    return Path(tempfile.gettempdir()) / _PLACE


def take(kept: Path) -> None:
    if kept.is_dir():
        shutil.copytree(kept, compiled(), dirs_exist_ok=True)


def keep(kept: Path) -> None:
    """Add the kernels that are whole: g++ may have been killed with the test that waited for it."""
    for kernel in compiled().rglob("*.so"):
        place = kept / kernel.relative_to(compiled())
        if place.exists() or not _loads(kernel):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_suffix(f".{os.getpid()}")
        shutil.copy2(kernel, draft)
        draft.replace(place)


def _loads(kernel: Path) -> bool:
    """Return whether a process survives its load; half a file can be a bus error."""
    code = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, kernel], capture_output=True, check=False
    )
    return done.returncode == 0


if __name__ == "__main__":
    {"take": take, "keep": keep}[sys.argv[1]](Path(sys.argv[2]))
