"""The table of packages in ``docs/architecture.md``: ``python -m tests.architecture.packages``.

Each row is a package and the docstring of its ``__init__``: the table cannot drift from the code.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
FOLDERS = ("api", "worker", "domain", "ops", "migrations")
BEGIN = "<!-- packages: begin (make packages) -->"
END = "<!-- packages: end -->"


def packages() -> Iterator[tuple[str, str]]:
    """Yield the path of each package and its docstring as one line."""
    for folder in FOLDERS:
        for init in sorted((ROOT / folder).rglob("__init__.py")):
            docstring = ast.get_docstring(ast.parse(init.read_text())) or ""
            line = " ".join(docstring.split()).replace("``", "`")
            yield str(init.parent.relative_to(ROOT)), line


def table() -> str:
    """Return the table between its two marks."""
    rows = (f"| `{path}/` | {line} |" for path, line in packages())
    return "\n".join((BEGIN, "| package | holds |", "|---|---|", *rows, END))


def with_table(page: str) -> str:
    """Return a page with the present table between its marks."""
    marks = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    return marks.sub(lambda _: table(), page)


def main() -> int:
    """Write the present table into the page."""
    PAGE.write_text(with_table(PAGE.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
