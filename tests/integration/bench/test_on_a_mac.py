"""``bench.on_a_mac`` in its short form: each part prints its figures on every machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_short_form_prints_every_figure() -> None:
    command = [sys.executable, "-m", "bench.on_a_mac", "--short"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    for named in (
        "write of a token, depth 0",
        "write of a token, depth 1",
        "operations launched at 2 rows",
        "host at 1 rows",
        "prompt in pieces of 64",
        "restore, exact",
        "restore, 8 bits",
        "wired by all programs",
    ):
        assert any(row.startswith(f"| {named}") for row in rows), named
    # The whole prompt but its last token comes from the disk.
    assert sum("for 299 tokens" in row for row in rows) == 2
    (equal,) = [row for row in rows if row.startswith("| equal greedy tokens after it, exact")]
    assert "16 of 16" in equal
