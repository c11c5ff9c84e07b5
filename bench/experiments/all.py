"""Run every experiment, each in a process of its own: ``python -m bench.experiments.all``.

python -m bench.experiments.all [--markdown FILE] [--model DIR] [--only NAME ...]

EXP-001, EXP-007, EXP-009 and EXP-010 are tests, which pytest runs; tests that it skips are named,
since an experiment without a run has no verdict. EXP-005 is ``bench.together`` with other numbers
of streams, EXP-012 is ``bench.swap``. ``--model`` is given to the experiments that have a model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

TESTS: Final = {
    "exp001": ("tests/integration/mlx/model/test_families.py", "-k", "derived_by_hand"),
    "exp007": (
        "tests/integration/mlx/kv/test_window_cache.py",
        "tests/integration/mlx/kv/test_disk_reuse.py",
    ),
    "exp009": ("tests/unit/api/dialects/shared/test_recorded_shapes.py",),
    "exp010": ("tests/e2e/agent_clis",),
}
NAMES: Final = (
    *("exp001", "exp002", "exp003", "exp004", "exp005", "exp006", "exp007", "exp008", "exp009"),
    *("exp010", "exp011", "exp_latency"),
)
ROOT: Final = Path(__file__).parents[2]
#: Arguments of the experiment of another program.
AGENTS: Final = "bench.together --streams 1 3 5 7 10 --tokens 96 --kinds prose"
WITH_MODEL: Final = ("exp005", "exp006", "exp008", "exp_latency")


def main() -> None:
    """Run them one after another; the exit code is the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="also write what they print to this file")
    parser.add_argument("--model", help="directory of a model; default: the demo model")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=list(NAMES))
    given = parser.parse_args()
    started_s = time.monotonic()
    printed: list[str] = []
    failed: list[str] = []
    for number, name in enumerate(given.only, start=1):
        spent_s = time.monotonic() - started_s
        print(f"[{number} of {len(given.only)}, {spent_s:.0f} s] {name}", file=sys.stderr)
        model = ["--model", given.model] if given.model and name in WITH_MODEL else []
        program = AGENTS if name == "exp005" else f"bench.experiments.{name}"
        words = [*program.split(), *model]
        if name in TESTS:
            words = ["pytest", "-q", "-rs", "-p", "no:cacheprovider", *TESTS[name]]
        command = [sys.executable, "-m", *words]
        done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            failed.append(name)
        printed.append(f"## {name}\n\n{done.stdout}")
        print(printed[-1], flush=True)
        if given.markdown is not None:
            given.markdown.write_text("\n".join(printed))
    print(f"took {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
