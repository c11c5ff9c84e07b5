"""The tables of metrics in ``docs/metrics.md``: ``python -m tests.architecture.metrics_table``.

They are made of ``ops.observe.families``, so the page cannot drift from the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from ops.observe.families import SECTIONS, Family

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
BEGIN = "<!-- metrics: begin (make packages) -->"
END = "<!-- metrics: end -->"
HEAD = ("| metric | type | meaning | from |", "|---|---|---|---|")


def tables() -> str:
    """Return the tables between their two marks."""
    parts = [BEGIN]
    for heading, families in SECTIONS.items():
        parts += [
            "",
            f"### {heading}",
            "",
            "| metric | type | meaning | from |",
            "|---|---|---|---|",
        ]
        parts += [_row(family) for family in families]
    parts += ["", "### Names of vLLM", "", "| vLLM | here |", "|---|---|"]
    parts += list(_aliases())
    return "\n".join((*parts, "", END))


def _row(family: Family) -> str:
    labels = f"`{{{', '.join(family.labels)}}}`" if family.labels else ""
    name = f"`{family.full_name}` {labels}".strip()
    return f"| {name} | {family.kind.value} | {family.help} | {family.source.value} |"


def _aliases() -> Iterator[str]:
    for families in SECTIONS.values():
        for family in families:
            if family.alias:
                yield f"| `{family.alias}` | `{family.full_name}` |"


def with_tables(page: str) -> str:
    """Return a page with the present tables between its marks."""
    marks = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return marks.sub(lambda _: tables(), page)


def main() -> int:
    """Write the present tables into the page."""
    PAGE.write_text(with_tables(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
