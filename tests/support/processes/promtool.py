"""Prometheus' own checks of rules, configurations and exposed metrics."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ops.observe.families import Family, Kind
from tests.support.polling import scaled

DONE_WITHIN_S = 60.0


def promtool(*arguments: str, cwd: Path | None = None, given: bytes = b"") -> str:
    """Run promtool and return what it prints; fail the test unless it accepts its input.

    Without promtool the test is skipped; in CI that is a failure.

    Args:
        *arguments: E.g. ``check``, ``rules`` and a file.
        cwd: Working directory.
        given: Standard input.
    """
    program = shutil.which("promtool")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have promtool")
        pytest.skip("promtool is not installed: Debian has it in the package prometheus")
    done = subprocess.run(
        [program, *arguments],
        cwd=cwd,
        input=given,
        capture_output=True,
        timeout=scaled(DONE_WITHIN_S),
        check=False,
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def sample_names(family: Family) -> tuple[str, ...]:
    """Return the names of the samples of a family in a scrape."""
    if family.kind is Kind.HISTOGRAM:
        return tuple(f"{family.full_name}_{part}" for part in ("bucket", "sum", "count"))
    return (family.full_name,)
