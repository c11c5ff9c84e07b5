"""The table of the cases in ``docs/benchmarks/stress.md``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.experiments.report import table_lines
from bench.report.files import replace_part
from bench.report.machine import line_of
from bench.stress.cases import CASES
from bench.stress.run import Case

BEGIN: Final = "<!-- stress: begin (python -m bench.stress writes this part) -->"
END: Final = "<!-- stress: end -->"


def write_page(page: Path, results: Mapping[str, dict[str, Any]]) -> None:
    """Replace the generated part of a page.

    Args:
        page: A Markdown file with both markers.
        results: The results by case.

    Raises:
        ValueError: The page has no markers.
    """
    replace_part(page, "the table", (BEGIN, END), lambda: lines(results))


def lines(results: Mapping[str, dict[str, Any]]) -> Iterator[str]:
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
