"""Run every experiment, each in a process of its own: ``python -m bench.experiments.all``.

python -m bench.experiments.all [--markdown FILE] [--model DIR] [--only NAME ...]

EXP-012 is ``bench.swap``. ``--model`` is given to the experiments that have a model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

MODULES = (
    *("exp001", "exp002", "exp003", "exp004", "exp005", "exp006"),
    *("by_tests", "exp008", "exp011", "exp_latency"),
)
WITH_MODEL = ("exp005", "exp006", "exp008", "exp_latency")


def main() -> None:
    """Run them one after another; the exit code is the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="also write what they print to this file")
    parser.add_argument("--model", help="directory of a model; default: the demo model")
    parser.add_argument("--only", nargs="+", choices=MODULES, default=list(MODULES))
    given = parser.parse_args()
    started_s = time.monotonic()
    printed: list[str] = []
    failed: list[str] = []
    for number, module in enumerate(given.only, start=1):
        spent_s = time.monotonic() - started_s
        print(f"[{number} of {len(given.only)}, {spent_s:.0f} s] {module}", file=sys.stderr)
        model = ["--model", given.model] if given.model and module in WITH_MODEL else []
        done = subprocess.run(
            [sys.executable, "-m", f"bench.experiments.{module}", *model],
            check=False,
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            failed.append(module)
        printed.append(f"## {module}\n\n{done.stdout}")
        print(printed[-1], flush=True)
        if given.markdown is not None:
            given.markdown.write_text("\n".join(printed))
    print(f"took {time.monotonic() - started_s:.0f} s", file=sys.stderr)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
