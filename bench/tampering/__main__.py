"""``python -m bench.tampering``: change a log at random places and look for changes not found.

Each slice has a recorded log of its own. The exit code is 1 after a slice with a change that was
missed or that crashed the verification; no slice follows it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from bench.long_runs import LongRun, add_slice_options, run_slices
from bench.tampering.run import TARGETS, Verdict, run

_FAULTS = (Verdict.MISSED, Verdict.CRASHED)


def main() -> int:
    """Run one slice after the other, print each result, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=1000, help="of one slice")
    parser.add_argument("--processes", type=int, default=2)
    add_slice_options(parser, slices=10)
    options = parser.parse_args()
    arguments = f"--mutations {options.mutations} --slices 1"
    return run_slices(
        "bench.tampering", arguments, options, lambda one, _: _run_slice(options, one)
    )


def _run_slice(options: argparse.Namespace, slice_: LongRun) -> bool:
    """Change one log and print the counts; return whether no change was missed."""
    began = time.monotonic()
    counts: Counter[tuple[str, Verdict]] = Counter()
    for change in run(options.mutations, slice_.seed, processes=options.processes):
        counts[change.target, change.judgement.verdict] += 1
        if change.judgement.verdict in _FAULTS:
            sys.stdout.write(f"{change}\n")
    for target in TARGETS:
        sys.stdout.write(f"{target}: {_sums(counts, [target])}\n")
    outcome = f"{options.mutations:,} mutations: {_sums(counts, list(TARGETS))}"
    sys.stdout.write(f"seed {slice_.seed}, {outcome}\n")
    sys.stdout.flush()
    if options.record:
        slice_.record(f"{outcome}; {(time.monotonic() - began) / 60:.0f} min")
    return not any(verdict in _FAULTS for _, verdict in counts)


def _sums(counts: Counter[tuple[str, Verdict]], targets: list[str]) -> str:
    sums = ((one, sum(counts[target, one] for target in targets)) for one in Verdict)
    return ", ".join(f"{count:,} {verdict.value}" for verdict, count in sums)


if __name__ == "__main__":
    sys.exit(main())
