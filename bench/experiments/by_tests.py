"""EXP-007, EXP-009 and EXP-010 are tests; this runs them: ``python -m bench.experiments.by_tests``.

Prints how many of each passed. Skipped tests, such as those of Claude Code where no npm is, are
named: an experiment without a run has no verdict.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.experiments.report import print_conditions, print_table, print_verdict

_ROOT: Final = Path(__file__).parents[2]
#: Question and tests of each experiment.
EXPERIMENTS: Final = {
    "EXP-007": (
        "Does a window's cache survive the disk?",
        (
            "tests/integration/mlx/kv/test_window_cache.py",
            "tests/integration/mlx/kv/test_disk_reuse.py",
        ),
    ),
    "EXP-009": (
        "Are answers those of the vendors' APIs?",
        ("tests/unit/api/dialects/shared/test_recorded_shapes.py",),
    ),
    "EXP-010": ("Does Claude Code work?", ("tests/e2e/agent_clis",)),
}


def main() -> None:
    """Print the table."""
    started_s = time.monotonic()
    failed: list[str] = []
    print_table(("experiment", "question", ">passed", ">failed", ">skipped"), _rows(failed))
    why = f"{', '.join(failed)} failed or did not run" if failed else "every test passed."
    print_verdict(reached=not failed, why=why)
    print_conditions(started_s)


def _rows(failed: list[str]) -> Iterator[tuple[object, ...]]:
    for name, (question, files) in EXPERIMENTS.items():
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
        counts = [counted(done.stdout, what) for what in ("passed", "failed", "skipped")]
        if done.returncode or not counts[0]:
            failed.append(name)
        yield name, question, *counts


def counted(output: str, what: str) -> int:
    """Return a number of pytest's last line."""
    found = re.search(rf"(\d+) {what}", (output.strip().splitlines() or [""])[-1])
    return int(found[1]) if found else 0


if __name__ == "__main__":
    main()
