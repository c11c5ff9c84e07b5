"""How well do several agents share a memory that is smaller than their contexts?

``python -m bench.memory [--quick] [--reminder] [--shapes A B] [--json FILE]``. Agents take five
turns, each with the result of a tool, one after another and all at once, within several budgets and
without a limit.
Every run is a process of its own, on a block store of its own. The networks are random, in float32,
with the layers, head ratios and windows of published models; see ``shapes``.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from pathlib import Path

from bench.memory.rotation_table import HEADER, REMINDER_TOKENS, Rotation, rotations, rows
from bench.memory.shapes import QUICK_SHAPES, SHAPES
from bench.report.section import Section, print_conditions, table_lines, use_worker_allocator


def main() -> None:
    """Measure, print Markdown, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short contexts, a quarter of layers")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, help="by default all")
    parser.add_argument(
        "--reminder", action="store_true", help="the end of each last message changes"
    )
    parser.add_argument("--json", type=Path, help="file that receives all figures")
    given = parser.parse_args()
    use_worker_allocator()
    started_s = time.monotonic()
    shapes = given.shapes or (QUICK_SHAPES if given.quick else tuple(SHAPES))
    reminder = REMINDER_TOKENS if given.reminder else 0
    runs: list[Rotation] = []
    table = []
    started = rotations(shapes, quick=given.quick, reminder=reminder)
    for line in table_lines(HEADER, rows(started, runs)):
        print(line, flush=True)
        table.append(line)
    Section(table=table, figures=[asdict(run) for run in runs]).write(given.json)
    print_conditions(started_s)


if __name__ == "__main__":
    main()
