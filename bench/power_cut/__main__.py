"""Is every promise kept when the power fails?

``python -m bench.power_cut --cuts 200 --seed 7`` records one run of everything that the service
writes, then rebuilds the directory as a power cut leaves it at so many moments and checks every
promise. The exit code is 1 if one was broken.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

from bench.experiments.report import print_conditions
from bench.power_cut.cuts import cut, cut_places, record, unseen
from bench.power_cut.recorder import compiler

#: Violations that are printed of each cut; others are only counted.
_SHOWN_MAX = 5


def main() -> int:
    """Record, cut, print the result, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.power_cut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=200, help="number of power cuts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if compiler() is None:
        print("a recording needs Linux and a C compiler")
        return 2
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="power-cut-"))
    recording = record(directory)
    missed = unseen(recording)
    print(f"recorded    {time.monotonic() - began:.1f} s, in {directory}", flush=True)
    print(f"not seen    {len(missed)} files {' '.join(missed)}", flush=True)
    places = cut_places(recording.journal, cuts=options.cuts, seed=options.seed)
    broken = cuts = 0
    for done in cut(recording, directory, places=places, seed=options.seed):
        broken += len(done.violations)
        cuts += bool(done.violations)
        for one in done.violations[:_SHOWN_MAX]:
            print(
                f"VIOLATION   cut {done.number} | {one.promise} | {one.subject} | {one.what}",
                flush=True,
            )
    print(f"cuts        {len(places)}")
    print(f"violations  {broken} in {cuts} cuts")
    print_conditions(began)
    if broken or missed:
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
