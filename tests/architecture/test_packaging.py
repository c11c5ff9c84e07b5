"""The generic top-level names are ours alone, and importing them does nothing."""

from __future__ import annotations

import importlib
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.support.polling import scaled

ROOT = Path(__file__).parents[2]
OURS = ("api", "worker", "domain", "ops", "migrations")


@pytest.mark.parametrize("name", OURS)
def test_top_level_name_is_imported_from_this_repository(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).is_relative_to(ROOT)
    assert set(packages_distributions().get(name, ["semantic"])) == {"semantic"}


def test_importing_every_module_without_environment_prints_nothing_and_starts_nothing() -> None:
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("api", "worker", "domain", "ops")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.name not in {"__main__.py", "__init__.py"}
    ]
    program = (
        "import sys, threading, importlib\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        "ours = [t.name for t in threading.enumerate() if t is not threading.main_thread()]\n"
        "assert not ours, ours\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(600),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
