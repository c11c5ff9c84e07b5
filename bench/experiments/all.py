"""Run every experiment, each in a process of its own: ``python -m bench.experiments.all``.

python -m bench.experiments.all [--markdown FILE] [--model DIR] [--only NAME ...]

Some are tests, which pytest runs; tests that it skips are named, since an experiment without a run
has no verdict. Others are a benchmark with numbers of their own. EXP-012 is ``bench.swap``.
``--model`` is given to the experiments that have a model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

_PYTEST: Final = "pytest -q -rs -p no:cacheprovider"
_EQUALITY: Final = f"{_PYTEST} --nightly tests/integration/mlx/kv/test_reuse_property.py"
#: What ``python -m`` runs.
PROGRAMS: Final = {
    "exp001": f"{_PYTEST} tests/integration/mlx/model/test_families.py -k derived_by_hand",
    "exp002": "bench.experiments.exp002",
    "exp003": f"{_EQUALITY} -k from_memory",
    "exp004": f"{_EQUALITY} -k from_disk",
    "exp005": "bench.together --streams 1 3 5 7 10 --tokens 96 --kinds prose",
    "exp006": "bench.experiments.exp006",
    "exp007": f"{_PYTEST} tests/integration/mlx/kv/test_window_cache.py"
    " tests/integration/mlx/kv/test_disk_reuse.py",
    "exp008": "bench.on_a_mac --only restore",
    "exp009": f"{_PYTEST} tests/unit/api/dialects/shared/test_recorded_shapes.py",
    "exp010": f"{_PYTEST} tests/e2e/agent_clis",
    "exp011": "bench.experiments.exp011",
    "exp_latency": "bench.experiments.exp_latency",
}
ROOT: Final = Path(__file__).parents[2]
WITH_MODEL: Final = ("exp005", "exp006", "exp008", "exp_latency")


def main() -> None:
    """Run them one after another; the exit code is the number of failures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="also write what they print to this file")
    parser.add_argument("--model", help="directory of a model; default: the demo model")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    given = parser.parse_args()
    started_s = time.monotonic()
    printed: list[str] = []
    failed: list[str] = []
    for number, name in enumerate(given.only, start=1):
        spent_s = time.monotonic() - started_s
        print(f"[{number} of {len(given.only)}, {spent_s:.0f} s] {name}", file=sys.stderr)
        model = ["--model", given.model] if given.model and name in WITH_MODEL else []
        command = [sys.executable, "-m", *PROGRAMS[name].split(), *model]
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
