"""Files of results, and the generated parts of pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
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
