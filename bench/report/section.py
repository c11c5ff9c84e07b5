"""What a benchmark shows: printed at its end, and kept as JSON for the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """The result of one benchmark.

    Attributes:
        table: Lines of Markdown.
        headline: What is measured, and the figure.
        plots: SVG by file name without its ending.
        figures: What the table is made of, for readers of the file.
    """

    table: Sequence[str]
    headline: tuple[str, str] | None = None
    plots: dict[str, str] = field(default_factory=dict)
    figures: Any = None

    def emit(self, file: Path | None) -> None:
        """Print the table, and write everything to a file if one is given."""
        print("\n".join(self.table), flush=True)
        self.write(file)

    def write(self, file: Path | None) -> None:
        """Write everything to a file if one is given."""
        if file is not None:
            file.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
