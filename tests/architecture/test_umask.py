"""Each program of the service creates files for its owner only."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_GUARD = 'if __name__ == "__main__":'


def _programs() -> list[str]:
    """Return the modules that run as a program."""
    files = (
        file for room in ("api", "ops", "worker") for file in sorted((_ROOT / room).rglob("*.py"))
    )
    return [
        ".".join(file.relative_to(_ROOT).with_suffix("").parts)
        for file in files
        if _GUARD in file.read_text()
    ]


@pytest.mark.parametrize("name", _programs())
def test_program_sets_its_umask(name: str) -> None:
    main = importlib.import_module(name).main
    source = inspect.getsource(main)
    # A standby becomes a worker before it writes, and the launcher of the wheel the command. The
    # program of the api imports the module that sets it.
    others = ("return run_worker()", "return run_api()", "from ops.cli.main import main")
    assert "create_private_files()" in source or any(other in source for other in others)
