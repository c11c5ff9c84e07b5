"""Does the service keep its promises under heavy and lasting load?

``python -m bench.stress --case NAME [--scale 0.1] [--json OUT]`` runs one of the twelve cases of
the plan with a service of its own; ``make stress`` runs those without a result and writes their
page. ``--scale`` shrinks load and time. The exit code is 1 if a target is missed that does not
depend on the machine's speed; the logs are kept then.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Final

from bench.report.section import Section, table_lines
from bench.soak.samples import keep
from bench.stress.cases import CASES, Case, run_case
from bench.stress.client import Outcome

#: Where the logs of failed cases stay.
FAILED: Final = Path("stress-failed")


def main() -> int:
    """Run a case, print its targets and figures, and return the exit code."""
    cases = {case.name: case for case in CASES}
    parser = argparse.ArgumentParser(prog="python -m bench.stress", description=__doc__)
    parser.add_argument("--case", choices=cases, required=True)
    parser.add_argument("--scale", type=float, default=1.0, help="share of load and time")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the result here")
    options = parser.parse_args()
    case = cases[options.case]
    print(f"{case.load}, about {case.minutes * options.scale:.1f} minutes", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"stress-{case.name}-"))
    passed = False
    try:
        outcome = run_case(case, folder, scale=options.scale)
        passed = outcome.passed
        section_of(case, outcome, options.scale).emit(options.json)
    finally:
        if not passed:
            print(f"logs       {keep(folder / 'data', folder / 'data.serve.log', FAILED)}")
    shutil.rmtree(folder)
    return int(not passed)


def section_of(case: Case, outcome: Outcome, scale: float) -> Section:
    """Return targets and figures of a case, its table, and the verdict."""
    checks = [(one.target, one.figure, "yes" if one.reached else "no") for one in outcome.checks]
    table = [*table_lines(("target", "figure", "reached"), checks)]
    if outcome.rows:
        table += ["", *table_lines(outcome.head, outcome.rows)]
    if outcome.note:
        table += ["", outcome.note]
    part = "" if scale == 1 else f" (scale {scale:g})"
    return Section(
        headline=(f"`{case.name}`: {case.load}{part}", outcome.verdict),
        table=table,
        figures=asdict(outcome),
    )


if __name__ == "__main__":
    sys.exit(main())
