"""EXP-007, EXP-009 and EXP-010 name tests that exist, and count what pytest prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.experiments.by_tests import EXPERIMENTS, counted

ROOT = Path(__file__).parents[3]


def test_every_named_test_exists() -> None:
    files = [file for _, named in EXPERIMENTS.values() for file in named]
    assert all((ROOT / file).exists() for file in files)


@pytest.mark.parametrize(
    ("output", "passed", "failed"),
    [
        ("....\n4 passed, 1 skipped in 2.0s", 4, 0),
        ("F\nFAILED a.py::b\n1 failed, 12 passed in 2.0s\n", 12, 1),
        ("", 0, 0),
    ],
)
def test_the_counts_are_those_of_the_last_line(output: str, passed: int, failed: int) -> None:
    assert (counted(output, "passed"), counted(output, "failed")) == (passed, failed)
