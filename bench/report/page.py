"""The generated part of the page of benchmarks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.report.files import replace_part
from bench.report.machine import line_of
from bench.report.parts import PARTS

BEGIN: Final = "<!-- report: begin (make report writes this part) -->"
END: Final = "<!-- report: end -->"
#: Headlines of the page.
HEADLINES_MAX: Final = 5


def write_page(page: Path, results: Mapping[str, dict[str, Any]]) -> None:
    """Replace the generated part of a page, and write its plots beside it.

    Args:
        page: A Markdown file with both markers.
        results: The figures by part, as ``run_part`` keeps them.

    Raises:
        ValueError: The page has no markers.
    """
    plots = page.parent / page.stem / "plots"
    replace_part(page, "the report", (BEGIN, END), lambda: _lines(results, plots, page))


def _lines(results: Mapping[str, dict[str, Any]], plots: Path, page: Path) -> Iterator[str]:
    shown = [(part, results[part.name]) for part in PARTS if part.name in results]
    made = {part.name: part.section(result["figures"]) for part, result in shown}
    yield ""
    yield "| headline | figure | command |"
    yield "|---|---|---|"
    headlines = [(made[part.name].headline, result) for part, result in shown]
    for headline, result in [one for one in headlines if one[0] is not None][:HEADLINES_MAX]:
        mark = "" if result["conditions"]["quiet"] else " (not quiet)"
        what, figure = headline or ("", "")
        yield f"| {what} | {figure}{mark} | `{result['command']}` |"
    for part, result in shown:
        section = made[part.name]
        yield ""
        yield f"### Report: {part.title.lower()}"
        yield ""
        yield f"- **Question:** {part.question}"
        yield f"- **Command:** `{result['command']}`"
        yield f"- **Conditions:** {line_of(result['conditions'])}"
        yield ""
        yield from section.table
        for name, svg in section.plots.items():
            plots.mkdir(parents=True, exist_ok=True)
            file = plots / f"{name}.svg"
            file.write_text(svg, encoding="utf-8")
            yield ""
            yield f"![{part.title}]({file.relative_to(page.parent).as_posix()})"
    yield ""
