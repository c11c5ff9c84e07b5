"""The exercise of ``docs/onboarding.md``: its test fails without the solution only."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.polling import scaled

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]
_COPIED = ("domain", "ops", "tests", "pyproject.toml")
_TEST = "tests/unit/domain/audit/test_timeline.py"
_ENDED_WITHIN_S = 600


def test_the_exercise_needs_its_solution(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "onboarding.md").read_text(encoding="utf-8")
    new_test, solution = re.findall(r"^```diff\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    for name in _COPIED:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    apply(new_test, tmp_path)
    assert "1 failed" in outcome_in(tmp_path)
    apply(solution, tmp_path)
    assert re.search(r"^\d+ passed", outcome_in(tmp_path), re.MULTILINE)


def apply(difference: str, folder: Path) -> None:
    """Apply a difference of the page; lines may have moved."""
    subprocess.run(
        ["git", "apply", "--recount", "-"], cwd=folder, input=difference, text=True, check=True
    )


def outcome_in(folder: Path) -> str:
    """Return the end of the output of the exercise's tests."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", _TEST],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(_ENDED_WITHIN_S),
    )
    return done.stdout[-2000:]
