"""How well do several agents share a memory that is smaller than their contexts?

``python -m bench.memory [--quick] [--shapes A,B] [--cases rotation,killed,long] [--json FILE]``.
Every run is a process of its own, on a block store of its own. The networks are random, in float32,
with the layers, head ratios and windows of published models; see ``shapes``.

``rotation``
    Agents take five turns, each with the result of a tool, one after another and all at once,
    within several budgets and without a limit.
``killed``
    The next turn after SIGKILL, beside the next turn in a process that lives.
``long``
    The next turn of a context of 20,000 tokens of a 12B model: from memory, from the disk, and from
    the disk while others decode.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.experiments.report import print_conditions, print_table, use_worker_allocator
from bench.memory.cases import measure_killed, measure_long
from bench.memory.rotation_table import HEADER, Rotation, rotations, rows
from bench.memory.shapes import QUICK_SHAPES, SHAPES

CASES = ("rotation", "killed", "long")


def main() -> None:
    """Measure, print Markdown, and write JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short contexts, a quarter of layers")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, help="by default all")
    parser.add_argument("--cases", nargs="*", choices=CASES, default=CASES)
    parser.add_argument("--long-tokens", type=int, default=20_000, help="of the case ``long``")
    parser.add_argument("--json", type=Path, help="file that receives all figures")
    parser.add_argument("--dir", type=Path, help="on the disk to measure")
    given = parser.parse_args()
    use_worker_allocator()
    started_s = time.monotonic()
    shapes = given.shapes or (QUICK_SHAPES if given.quick else tuple(SHAPES))
    found: dict[str, Any] = {}
    if "rotation" in given.cases:
        runs: list[Rotation] = []
        print_table(HEADER, rows(rotations(shapes, quick=given.quick), runs))
        found["rotation"] = [asdict(run) for run in runs]
    if "killed" in given.cases:
        found["killed"] = measure_killed(shapes, given.dir, quick=given.quick)
    if "long" in given.cases:
        found["long"] = measure_long(given.long_tokens, given.dir)
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    print_conditions(started_s)


if __name__ == "__main__":
    main()
