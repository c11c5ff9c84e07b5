"""``python -m bench.tampering``: change a log at random places and look for changes not found."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from bench.tampering.judge import Verdict
from bench.tampering.run import TARGETS, Change, run

_EXAMPLES_MAX = 20


def main() -> int:
    """Run and print a report; the exit code is 1 if a change was missed or crashed a reader."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the report as JSON")
    options = parser.parse_args()
    started_s = time.monotonic()
    counts: Counter[tuple[str, str]] = Counter()
    faults: list[Change] = []
    for change in run(options.mutations, options.seed, processes=options.processes):
        counts[change.target, change.judgement.verdict.value] += 1
        if change.judgement.verdict in {Verdict.MISSED, Verdict.CRASHED}:
            faults.append(change)
            sys.stdout.write(f"{change}\n")
    report = {
        "mutations": options.mutations,
        "seed": options.seed,
        "seconds": round(time.monotonic() - started_s, 1),
        "counts": {
            target: {one.value: counts[target, one.value] for one in Verdict} for target in TARGETS
        },
        "faults": [asdict(change) for change in faults[:_EXAMPLES_MAX]],
    }
    text = json.dumps(report, indent=2)
    sys.stdout.write(text + "\n")
    if options.out is not None:
        options.out.write_text(text + "\n", "utf-8")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
