"""What the commands print. No other module of the commands writes to a stream."""

from __future__ import annotations

import codecs
import sys
from typing import Final

import typer

from ops.terminal_text import visible


def echo(text: str, *, err: bool = False) -> None:
    """Print lines; control characters are shown, on a terminal and in a pipe.

    A JSON text stays the same value, since the notation is that of JSON.
    """
    typer.echo(visible(text), err=err)


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
