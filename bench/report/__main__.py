"""Run the benchmarks and write the pages with their figures.

    python -m bench.report [--only NAME ...] [--again] [--quick] [--loaded] [--rivals DIR]
                           [--soak-minutes N] [--model DIR]

Each benchmark keeps its figures in a file, so a report that was interrupted goes on, and one part
can be repeated: ``--only soak --again``. Before each, the machine has to be quiet; ``--loaded``
runs anyway and marks the figures. The exit code is 1 if a benchmark failed or missed a target that
does not depend on the machine's speed.
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

from bench.report.parts import PARTS, Part
from bench.report.section import BUSY_PERCENT_MAX, busy_percent, conditions, line_of

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
RESULTS: Final = DOCS / "benchmarks" / "results"
#: Benchmarks that can measure other servers too.
_WITH_RIVALS: Final = ("league",)
#: Benchmarks of a model of the caller; the others have their own.
_WITH_MODEL: Final = ("together",)
BEGIN: Final = "<!-- report: begin (make report writes this part) -->"
END: Final = "<!-- report: end -->"


def main() -> int:
    """Run what has no figures yet, write the pages, and return the exit code."""
    options = _parser().parse_args()
    failed = []
    for part in PARTS:
        file = RESULTS / f"{part.name}.json"
        if options.only and not {part.name, part.module} & {*options.only}:
            continue
        if file.exists() and not options.again:
            print(f"{part.name}: has figures; --again repeats it", flush=True)
        elif not _run(part, file, options):
            failed.append(part.name)
    for page in dict.fromkeys(page for part in PARTS for page in part.pages):
        write_page(DOCS / page, [part for part in PARTS if page in part.pages])
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return int(bool(failed))


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
    shown = " ".join(["python -m", f"bench.{part.module}", *map(_shown, arguments)])
    print(f"{part.name}: {shown}", flush=True)
    with tempfile.TemporaryDirectory(prefix="report-") as folder:
        out = Path(folder) / "figures.json"
        command = [sys.executable, "-m", f"bench.{part.module}", *arguments, "--json", str(out)]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if out.exists():
            result = {
                "part": part.name,
                "command": shown,
                "conditions": conditions(busy),
                "section": json.loads(out.read_text(encoding="utf-8")),
            }
            file.write_text(json.dumps(result, ensure_ascii=False) + "\n", encoding="utf-8")
    return done.returncode == 0 and file.exists()


def _shown(argument: str) -> str:
    """Return a path as its name: the page is read on other machines."""
    return Path(argument).name if argument.startswith("/") else argument


def write_page(page: Path, parts: list[Part], results: Path = RESULTS) -> None:
    """Replace what stands between the markers of a page, and write its plots beside it.

    Args:
        page: A Markdown file.
        parts: Those that it shows, if they have figures.
        results: The files of figures.

    Raises:
        ValueError: The page has no markers.
    """
    before, found_begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, found_end, after = rest.partition(END)
    if not found_begin or not found_end:
        message = f"{page} has no place for the report: {BEGIN} and {END}"
        raise ValueError(message)
    files = {part: results / f"{part.name}.json" for part in parts}
    shown = {
        part: json.loads(file.read_text(encoding="utf-8"))
        for part, file in files.items()
        if file.exists()
    }
    body = "\n".join(_lines(shown, page))
    page.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}", encoding="utf-8")
    print(f"wrote {page}")


def _lines(shown: Mapping[Part, dict[str, Any]], page: Path) -> Iterator[str]:
    plots = page.parent / page.stem / "plots"
    headed = [result for result in shown.values() if result["section"]["headline"]]
    if headed:
        yield from ("", "| headline | figure | command |", "|---|---|---|")
    for result in headed:
        mark = "" if result["conditions"]["quiet"] else " (not quiet)"
        what, figure = result["section"]["headline"]
        yield f"| {what} | {figure}{mark} | `{result['command']}` |"
    for part, result in shown.items():
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
    names = list(dict.fromkeys(name for part in PARTS for name in (part.module, part.name)))
    parser.add_argument("--only", nargs="+", choices=names, help="these parts; default: all")
    parser.add_argument("--again", action="store_true", help="repeat parts that have figures")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to check the harness")
    parser.add_argument("--loaded", action="store_true", help="run beside other programs")
    parser.add_argument("--rivals", type=Path, help="folder of environments, as bench.league")
    parser.add_argument("--model", type=Path, help="model of bench.together; default: the demo")
    parser.add_argument("--soak-minutes", type=float, help="length of the mixed load")
    return parser


if __name__ == "__main__":
    sys.exit(main())
