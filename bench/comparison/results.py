"""The figures of all rounds, and their table."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.comparison.measurements.base import Figure, Row

_REASON_CHARACTERS_MAX = 80


@dataclass(slots=True)
class Cell:
    """The figures of one row for one server."""

    figures: list[Figure] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def text(self, row: Row) -> str:
        """Return the median, or the most frequent verdict, or the reason why there is none."""
        if not self.figures:
            return f"failed: {_short(self.failures[-1])}" if self.failures else "-"
        numbers = [figure for figure in self.figures if not isinstance(figure, str)]
        middle: Figure = (
            statistics.median(numbers)
            if numbers
            else Counter(map(str, self.figures)).most_common(1)[0][0]
        )
        text = row.form.format(middle)
        if self.failures:
            text += f" (failed {len(self.failures)} of {len(self.figures) + len(self.failures)})"
        return text


@dataclass(slots=True)
class Results:
    """Cells by row and server."""

    cells: dict[tuple[str, str], Cell] = field(default_factory=dict)

    def add(self, row: str, server: str, figure: Figure) -> None:
        """Add the figures of one round."""
        self.cells.setdefault((row, server), Cell()).figures.append(figure)

    def fail(self, row: str, server: str, why: str) -> None:
        """Record that a round failed."""
        self.cells.setdefault((row, server), Cell()).failures.append(why)

    def table(self, rows: Sequence[Row], servers: Sequence[str]) -> Iterator[str]:
        """Yield the lines of a Markdown table with one column for each server."""
        yield f"| | {' | '.join(servers)} |"
        yield f"|---|{'--:|' * len(servers)}"
        for row in rows:
            text = (self.cells.get((row.key, server), Cell()).text(row) for server in servers)
            yield f"| {row.title} | {' | '.join(text)} |"

    def as_json(self) -> dict[str, dict[str, dict[str, list[Figure] | list[str]]]]:
        """Return every figure of every round: server, row, figures and failures."""
        text: dict[str, dict[str, dict[str, list[Figure] | list[str]]]] = {}
        for (row, server), cell in self.cells.items():
            text.setdefault(server, {})[row] = {
                "figures": cell.figures,
                "failures": cell.failures,
            }
        return text


def _short(reason: str) -> str:
    line = " ".join(reason.split()).replace("|", "/")
    if len(line) <= _REASON_CHARACTERS_MAX:
        return line
    return line[: _REASON_CHARACTERS_MAX - 1] + "…"
