"""Files of results, and the generated parts of pages."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any


def read_result(file: Path) -> dict[str, Any] | None:
    """Return a result that an earlier run kept; ``None`` where there is none."""
    if not file.exists():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def replace_part(
    page: Path, what: str, marks: tuple[str, str], lines: Callable[[], Iterable[str]]
) -> None:
    """Replace what stands between two markers of a page.

    Args:
        page: A Markdown file.
        what: The name of the part, for the error.
        marks: The markers before and after it.
        lines: Returns the new lines; called once the markers are found.

    Raises:
        ValueError: The page has no markers.
    """
    begin, end = marks
    before, found_begin, rest = page.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        message = f"{page} has no place for {what}: {begin} and {end}"
        raise ValueError(message)
    body = "\n".join(lines())
    page.write_text(f"{before}{begin}\n{body}\n{end}{after}", encoding="utf-8")


def run_parts(
    names: Sequence[str],
    chosen: Sequence[str] | None,
    options: argparse.Namespace,
    run: Callable[[str, Path], bool],
) -> list[str]:
    """Run each part that has no result yet; return those that failed.

    Args:
        names: All parts in order.
        chosen: The parts to run; none for all.
        options: With ``results``, the directory of their files, and ``again``.
        run: Runs a part, writes its result into a file, and returns whether it succeeded.
    """
    options.results.mkdir(parents=True, exist_ok=True)
    failed = []
    for name in names:
        file = options.results / f"{name}.json"
        if chosen and name not in chosen:
            continue
        if file.exists() and not options.again:
            print(f"{name}: has a result; --again repeats it", flush=True)
        elif not run(name, file):
            failed.append(name)
    return failed


def finish(page: Path, failed: Sequence[str]) -> int:
    """Print which page was written and what failed, and return the exit code."""
    print(f"wrote {page}")
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return int(bool(failed))


def read_results(results: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the results that there are, by part."""
    found = {name: read_result(results / f"{name}.json") for name in names}
    return {name: one for name, one in found.items() if one is not None}
