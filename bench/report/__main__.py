"""Run the benchmarks and write the page with their figures.

    python -m bench.report [--only NAME ...] [--again] [--quick] [--loaded] [--rivals DIR]
                           [--soak-minutes N] [--model DIR]

Each benchmark keeps its figures in a file, so a report that was interrupted goes on, and one part
can be repeated: ``--only soak --again``. Before each, the machine has to be quiet; ``--loaded``
runs anyway and marks the figures. The exit code is 1 if a benchmark failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.report.files import finish, read_results, replace_part, run_parts
from bench.report.machine import BUSY_PERCENT_MAX, busy_percent, conditions, line_of
from bench.report.parts import PARTS, Part

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "benchmarks.md"
RESULTS: Final = ROOT / "docs" / "benchmarks" / "results"
#: Benchmarks that can measure other servers too.
_WITH_RIVALS: Final = ("league",)
#: Benchmarks of a model of the caller; the others have their own.
_WITH_MODEL: Final = ("together",)
BEGIN: Final = "<!-- report: begin (make report writes this part) -->"
END: Final = "<!-- report: end -->"
#: Headlines of the page.
HEADLINES_MAX: Final = 5


def main() -> int:
    """Run what has no figures yet, and write the page."""
    options = _parser().parse_args()
    parts = {part.name: part for part in PARTS}
    failed = run_parts(
        [*parts], options.only, options, lambda name, file: _run(parts[name], file, options)
    )
    # A page of its own shows the parts that it is about.
    is_whole = options.page.resolve() == PAGE
    shown = [name for name in parts if is_whole or name in (options.only or ())]
    write_page(options.page, read_results(options.results, shown))
    return finish(options.page, failed)


def _run(part: Part, file: Path, options: argparse.Namespace) -> bool:
    """Run one benchmark and keep its figures; return whether it succeeded."""
    busy = busy_percent()
    if busy > BUSY_PERCENT_MAX and not options.loaded:
        sys.exit(
            f"other programs use {busy:.0f} % of the processors, more than"
            f" {BUSY_PERCENT_MAX:g} %; wait, or mark the figures with --loaded"
        )
    arguments = (part.quick if options.quick else part.full).split()
    if part.name == "soak" and options.soak_minutes:
        arguments = ["--minutes", f"{options.soak_minutes:g}"]
    if options.rivals is not None and part.name in _WITH_RIVALS:
        arguments += ["--rivals", str(options.rivals)]
    if options.model is not None and part.name in _WITH_MODEL:
        arguments += ["--model", str(options.model)]
    shown = " ".join(["python -m", f"bench.{part.name}", *map(_shown, arguments)])
    print(f"{part.name}: {shown}", flush=True)
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", f"bench.{part.name}", *arguments, "--json", str(out)]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if out.exists():
            result = {
                "part": part.name,
                "command": shown,
                "conditions": conditions(busy),
                "section": json.loads(out.read_text(encoding="utf-8")),
            }
            file.write_text(json.dumps(result) + "\n", encoding="utf-8")
    return done.returncode == 0 and file.exists()


def _shown(argument: str) -> str:
    """Return a path as its name: the page is read on other machines."""
    return Path(argument).name if argument.startswith("/") else argument


def write_page(page: Path, results: Mapping[str, dict[str, Any]]) -> None:
    """Replace the generated part of a page, and write its plots beside it.

    Args:
        page: A Markdown file with both markers.
        results: The figures by part, as they are kept.

    Raises:
        ValueError: The page has no markers.
    """
    plots = page.parent / page.stem / "plots"
    replace_part(page, "the report", (BEGIN, END), lambda: _lines(results, plots, page))


def _lines(results: Mapping[str, dict[str, Any]], plots: Path, page: Path) -> Iterator[str]:
    shown = [(part, results[part.name]) for part in PARTS if part.name in results]
    headed = [result for _, result in shown if result["section"]["headline"]][:HEADLINES_MAX]
    if headed:
        yield from ("", "| headline | figure | command |", "|---|---|---|")
    for result in headed:
        mark = "" if result["conditions"]["quiet"] else " (not quiet)"
        what, figure = result["section"]["headline"]
        yield f"| {what} | {figure}{mark} | `{result['command']}` |"
    for part, result in shown:
        section = result["section"]
        yield ""
        yield f"### Report: {part.title.lower()}"
        yield ""
        yield f"- **Question:** {part.question}"
        yield f"- **Command:** `{result['command']}`"
        yield f"- **Conditions:** {line_of(result['conditions'])}"
        yield ""
        yield from section["table"]
        for name, svg in section["plots"].items():
            plots.mkdir(parents=True, exist_ok=True)
            file = plots / f"{name}.svg"
            file.write_text(svg, encoding="utf-8")
            yield ""
            yield f"![{part.title}]({file.relative_to(page.parent).as_posix()})"
    yield ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, help="these parts; default: all")
    parser.add_argument("--again", action="store_true", help="repeat parts that have figures")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check the harness")
    parser.add_argument("--loaded", action="store_true", help="run beside other programs")
    parser.add_argument("--rivals", type=Path, help="folder of environments, as bench.league")
    parser.add_argument("--model", type=Path, help="model of bench.together; default: the demo")
    parser.add_argument("--soak-minutes", type=float, help="length of the mixed load")
    parser.add_argument("--results", type=Path, default=RESULTS, help="files of figures")
    parser.add_argument(
        "--page",
        type=Path,
        default=PAGE,
        help="Markdown file with the markers; another one than the default shows --only",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
