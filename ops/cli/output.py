"""What the commands print, and their tables. No other module of the commands writes to a stream."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import typer

from ops.terminal_text import visible, visible_line


def echo(text: str, *, err: bool = False) -> None:
    """Print lines; control characters are shown, on a terminal and in a pipe.

    A JSON text stays the same value, since the notation is that of JSON.
    """
    typer.echo(visible(text), err=err)


def print_json(value: object, *, ascii_only: bool = True) -> None:
    """Print a value as JSON of several lines."""
    echo(json.dumps(value, indent=2, ensure_ascii=ascii_only))


def print_answer(value: object, text: str, *, as_json: bool) -> None:
    """Print what a request has done, as JSON or in a sentence."""
    if as_json:
        print_json(value, ascii_only=False)
    else:
        echo(text)


def echo_data(text: str) -> None:
    """Print data, such as the text of a model: unchanged, except on a terminal."""
    sys.stdout.write(visible(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


class DataOutput:
    """Standard output for bytes that come in pieces: unchanged, except on a terminal."""

    def __init__(self) -> None:
        self._decoder: Final = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def write(self, piece: bytes) -> object:
        """Print a piece."""
        if not sys.stdout.isatty():
            return sys.stdout.buffer.write(piece)
        return sys.stdout.write(visible(self._decoder.decode(piece)))

    def flush(self) -> None:
        """Hand what is written to its reader."""
        sys.stdout.flush()

    def close(self) -> None:
        """Flush; standard output stays open."""
        self.flush()


#: To the first column, and without what stood in the line.
_CLEAR: Final = "\r\x1b[K"


class ProgressLine:
    """One line of stderr that is overwritten; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._shown = ""

    def show(self, words: str) -> None:
        """Show words in place of those before; none clears the line."""
        if self._is_terminal and words != self._shown:
            self._shown = words
            sys.stderr.write(_CLEAR + visible_line(words))
            sys.stderr.flush()

    def show_item(self, item: Mapping[str, Any]) -> None:
        """Show an item of progress of a stream; another item clears the line."""
        if item["kind"] != "progress":
            self.show("")
        elif item["phase"] == "prefill":
            self.show(reading(item["done"], item["total"]))
        else:
            self.show(f"waits; {item['total']:,} before it")


def reading(done: int, total: int) -> str:
    """Return how far a prompt is read."""
    return f"reads the prompt: {done:,} of {total:,} tokens"


_GAP = "  "


def print_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows under a header line."""
    lines = [tuple(map(visible_line, line)) for line in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        echo(_GAP.join(cells).rstrip())


#: What a table has under each of its headings: a member of a row, or a text that is made of it.
Columns = Mapping[str, str | Callable[[Any], str]]


def print_rows(rows: Iterable[Any], columns: Columns) -> None:
    """Print JSON objects as a table; ``null`` is an empty cell."""
    print_table(
        tuple(columns), [[_cell(row, column) for column in columns.values()] for row in rows]
    )


def _cell(row: Mapping[str, Any], column: str | Callable[[Any], str]) -> str:
    value = row[column] if isinstance(column, str) else column(row)
    return "" if value is None else str(value)


def print_page(
    page: Mapping[str, Any],
    columns: Columns,
    *,
    as_json: bool,
    more: str = "there are older ones: raise --limit",
) -> None:
    """Print a page of rows as JSON, or as a table; ``more``: how to see the others."""
    if as_json:
        print_json(page, ascii_only=False)
        return
    print_rows(page["data"], columns)
    if page.get("has_more"):
        echo(more, err=True)


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values in two columns."""
    for line in pair_lines(pairs):
        echo(line)


def ability_pairs(abilities: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what the engine can do with a model, and why not, as names and values."""
    return [
        (name.replace("_", " "), ": ".join(filter(None, (one["degree"], one["why"]))))
        for name, one in abilities.items()
    ]


def pair_lines(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Return names and values in two columns, as lines that cannot control a terminal."""
    width = max(len(name) for name, _ in pairs)
    return [f"{name.ljust(width)}{_GAP}{visible_line(value)}".rstrip() for name, value in pairs]
