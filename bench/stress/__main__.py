"""Does the service keep its promises under heavy and lasting load?

    python -m bench.stress [--case NAME ...] [--again] [--scale 0.1] [--results DIR] [--page FILE]

Runs the twelve cases of the plan, each with a service of its own. Each case keeps its result in a
file, so a run that was interrupted goes on with the next case; ``--again`` repeats cases.
``--scale`` shrinks load and time. The exit code is 1 if a target is missed that does not depend on
the machine's speed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from bench.experiments.report import print_table, table_lines
from bench.report.files import finish, read_results, replace_part, run_parts
from bench.report.machine import BUSY_PERCENT_MAX, busy_percent, conditions, line_of
from bench.soak.evidence import keep
from bench.stress.cases import CASES
from bench.stress.run import Case, run_case
from bench.stress.verdict import Outcome

ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "docs" / "benchmarks" / "results" / "stress"
PAGE: Final = ROOT / "docs" / "benchmarks" / "stress.md"
#: Where the logs of failed cases stay.
FAILED: Final = Path("stress-failed")
BEGIN: Final = "<!-- stress: begin (python -m bench.stress writes this part) -->"
END: Final = "<!-- stress: end -->"


def main() -> int:
    """Run what has no result yet, write the page, and return the exit code."""
    options = _parser().parse_args()
    if options.list:
        print_table(
            ("case", ">minutes", "load"),
            [(one.name, f"{one.minutes:g}", one.load) for one in CASES],
        )
        return 0
    names = [case.name for case in CASES]

    def run(name: str, file: Path) -> bool:
        result = _result(CASES[names.index(name)], options.scale)
        file.write_text(json.dumps(result, ensure_ascii=False) + "\n", encoding="utf-8")
        return bool(result["passed"])

    failed = run_parts(names, options.case, options, run)
    write_page(options.page, read_results(options.results, names))
    return finish(options.page, failed)


def _result(case: Case, scale: float) -> dict[str, Any]:
    busy = busy_percent()
    if busy > BUSY_PERCENT_MAX:
        print(f"{case.name}: other programs use {busy:.0f} % of the processors", flush=True)
    print(f"{case.name}: {case.load}, about {case.minutes * scale:.1f} minutes", flush=True)
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"stress-{case.name}-"))
    try:
        outcome = run_case(case, folder, scale=scale)
    except BaseException:
        print(f"logs       {keep(folder / 'data', folder / 'data.serve.log', FAILED)}")
        raise
    _print(outcome)
    if not outcome.passed:
        print(f"logs       {keep(folder / 'data', folder / 'data.serve.log', FAILED)}")
    shutil.rmtree(folder)
    arguments = f" --scale {scale:g}" if scale != 1 else ""
    return {
        "command": f"python -m bench.stress --case {case.name}{arguments}",
        "scale": scale,
        "took_s": round(time.monotonic() - began_s, 1),
        "conditions": conditions(busy),
        "passed": outcome.passed,
        "verdict": outcome.verdict,
        "checks": [asdict(one) for one in outcome.checks],
        "head": list(outcome.head),
        "rows": [list(row) for row in outcome.rows],
        "note": outcome.note,
    }


def _print(outcome: Outcome) -> None:
    print_table(
        ("target", "figure", "reached"),
        [(one.target, one.figure, "yes" if one.reached else "no") for one in outcome.checks],
    )
    if outcome.rows:
        print_table(outcome.head, outcome.rows)
    print(outcome.verdict, flush=True)


def write_page(page: Path, results: Mapping[str, dict[str, Any]]) -> None:
    """Replace the generated part of a page.

    Args:
        page: A Markdown file with both markers.
        results: The results by case.

    Raises:
        ValueError: The page has no markers.
    """
    replace_part(page, "the table", (BEGIN, END), lambda: _lines(results))


def _lines(results: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the table of verdicts, then the tables of single cases and the conditions."""
    yield ""
    yield "| case | load | targets and figures | verdict |"
    yield "|---|---|---|---|"
    for case in CASES:
        yield _row(case, results.get(case.name))
    for case in CASES:
        result = results.get(case.name)
        if result is not None:
            yield from _section(case, result)
    yield ""


def _row(case: Case, result: Mapping[str, Any] | None) -> str:
    if result is None:
        return f"| `{case.name}` | {case.load} | | not run yet |"
    mark = "" if result["conditions"]["quiet"] else " (loaded machine)"
    scale = "" if result["scale"] == 1 else f" (scale {result['scale']:g})"
    figures = "; ".join(f"{one['target']}: {one['figure']}" for one in result["checks"])
    return f"| `{case.name}` | {case.load}{scale} | {figures} | {result['verdict']}{mark} |"


def _section(case: Case, result: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    yield f"### Case `{case.name}`"
    yield ""
    yield f"- **Command:** `{result['command']}` ({result['took_s']:.0f} s)"
    yield f"- **Conditions:** {line_of(result['conditions'])}"
    if result["note"]:
        yield f"- **Note:** {result['note']}"
    if result["rows"]:
        yield ""
        yield from table_lines(result["head"], result["rows"])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.stress",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [case.name for case in CASES]
    parser.add_argument("--case", nargs="+", choices=names, help="these cases; default: all")
    parser.add_argument(
        "--list", action="store_true", help="print the cases and how long each takes"
    )
    parser.add_argument("--again", action="store_true", help="repeat cases that have a result")
    parser.add_argument("--scale", type=float, default=1.0, help="share of load and time")
    parser.add_argument("--results", type=Path, default=RESULTS, help="files of results")
    parser.add_argument("--page", type=Path, default=PAGE, help="Markdown file with the markers")
    return parser


if __name__ == "__main__":
    sys.exit(main())
