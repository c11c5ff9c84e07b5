"""The index of the architecture decision records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from docs.site.tables import GENERATED, table

FOLDER: Final = Path(__file__).parents[1] / "adr"
_HEAD = """
# Decisions

For engineers who ask why something is as it is. Each record has the context, the decision, its
consequences and the alternatives. A later record names the earlier ones that it changes.
"""
_TITLE: Final = re.compile(r"# ADR (\d{4}): (.*)\n+Status: (.*)")


def render() -> str:
    """Return the page."""
    rows = []
    for path in sorted(FOLDER.glob("[0-9]*.md")):
        found = _TITLE.match(path.read_text(encoding="utf-8"))
        if found is None:
            raise ValueError(f"{path.name} does not begin with its title and status")
        number, title, status = found.groups()
        rows.append((f"[{number}]({path.name})", title, status))
    return "\n".join([GENERATED, _HEAD, *table(("", "decision", "status"), rows)])
