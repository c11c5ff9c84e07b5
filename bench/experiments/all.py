"""Run every experiment, each in a process of its own: ``python -m bench.experiments.all``.

python -m bench.experiments.all [--markdown FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

MODULES = ("exp001", "exp002", "exp003", "exp004", "exp011")


def main() -> None:
    """Run them one after another; the exit code is the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="also write what they print to this file")
    given = parser.parse_args()
    started_s = time.monotonic()
    printed: list[str] = []
    failed: list[str] = []
    for number, module in enumerate(MODULES, start=1):
        spent_s = time.monotonic() - started_s
        print(f"[{number} of {len(MODULES)}, {spent_s:.0f} s] {module}", file=sys.stderr)
        done = subprocess.run(
            [sys.executable, "-m", f"bench.experiments.{module}"],
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
