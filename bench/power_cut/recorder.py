"""Compiles the recorder, and makes the environment in which processes are recorded."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_SOURCE: Final = Path(__file__).with_name("recorder.c")


def compiler() -> str | None:
    """Return the C compiler; ``None`` where nothing can be recorded."""
    return shutil.which("cc") or shutil.which("tcc") if sys.platform == "linux" else None


def compile_recorder(directory: Path) -> Path:
    """Write the recorder as a shared library to ``directory`` and return its path."""
    program = compiler()
    assert program is not None, "there is no C compiler"
    library = directory / "recorder.so"
    arguments = ["-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    subprocess.run([program, *arguments], check=True)
    return library


def recorded_environment(library: Path, *, root: Path, journal: Path) -> dict[str, str]:
    """Return the variables of a process whose writes below ``root`` go into ``journal``.

    Args:
        library: From ``compile_recorder``.
        root: An existing directory, without links in its path.
        journal: A file outside ``root``.
    """
    return {
        "LD_PRELOAD": str(library),
        "POWER_CUT_ROOT": str(root),
        "POWER_CUT_JOURNAL": str(journal),
    }
