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
from collections.abc import Iterable
from pathlib import Path

from bench.power_cut.check import Promises, check
from bench.power_cut.cuts import Cut, cut, cut_places, record, unseen
from bench.power_cut.journal import compiler
from bench.power_cut.service_cuts import cut_service, record_service
from bench.report.section import print_conditions

#: Violations that are printed of each cut; others are only counted.
_SHOWN_MAX = 5


def main() -> int:
    """Record, cut, print the result, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.power_cut", description=__doc__)
    parser.add_argument("--cuts", type=int, default=200, help="number of power cuts")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--service", action="store_true", help="record a whole service; each cut starts it again"
    )
    options = parser.parse_args()
    if compiler() is None:
        print("a recording needs Linux and a C compiler")
        return 2
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="power-cut-"))
    recording = record_service(directory) if options.service else record(directory)
    missed = [] if options.service else unseen(recording)
    print(f"recorded    {time.monotonic() - began:.1f} s, in {directory}", flush=True)
    print(f"not seen    {len(missed)} files {' '.join(missed)}", flush=True)
    if options.service:
        done = cut_service(recording, directory, cuts=options.cuts, seed=options.seed)
    else:
        places = cut_places(recording.journal, cuts=options.cuts, seed=options.seed)
        promises = Promises()
        done = cut(
            recording,
            directory,
            places=places,
            seed=options.seed,
            promise=promises.add,
            broken=lambda root: check(root, promises),
        )
    broken = _print(done)
    print_conditions(began)
    if broken or missed:
        return 1
    shutil.rmtree(directory)
    return 0


def _print(done: Iterable[Cut]) -> int:
    """Print the violations; return their number."""
    cuts = violations = 0
    for one in done:
        cuts += 1
        violations += len(one.violations)
        for each in one.violations[:_SHOWN_MAX]:
            where = f"cut {one.number} at {one.at}"
            print(
                f"VIOLATION   {where} | {each.promise} | {each.subject} | {each.what}", flush=True
            )
    print(f"cuts        {cuts}")
    print(f"violations  {violations}")
    return violations


if __name__ == "__main__":
    sys.exit(main())
