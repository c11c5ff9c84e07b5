"""Plain aligned tables, the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ops.cli.output import echo
from ops.terminal_text import visible_line

_GAP = "  "


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under a header line."""
    lines = [tuple(map(visible_line, line)) for line in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        echo(_GAP.join(cells).rstrip())


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    for line in pair_lines(pairs):
        echo(line)


def pair_lines(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return names and values in two columns, as lines that cannot control a terminal."""
    width = max(len(name) for name, _ in pairs)
    return [f"{name.ljust(width)}{_GAP}{visible_line(value)}".rstrip() for name, value in pairs]
