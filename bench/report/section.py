"""What a benchmark shows: printed, and kept as JSON for the page."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import structlog

from ops.supervisor.parts import LARGE_ARRAYS, allocator_environment


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


def use_worker_allocator() -> None:
    """Restart this program with the worker's allocator environment of ``semantic serve``.

    Returns if the environment is set already, or if this system needs none.
    """
    missing = allocator_environment(LARGE_ARRAYS, os.environ)
    if missing:
        sys.stdout.flush()
        os.execve(sys.executable, sys.orig_argv, os.environ | missing)  # noqa: S606 - ourselves


def log_to_stderr() -> None:
    """Send the engine's log to standard error: standard output is Markdown."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))


def table_lines(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Yield a Markdown table, each row as soon as it is known.

    A column is aligned to the right where its title begins with ``>``.
    """
    yield "| " + " | ".join(title.removeprefix(">") for title in header) + " |"
    yield "|" + "|".join("--:" if title.startswith(">") else "---" for title in header) + "|"
    for row in rows:
        yield "| " + " | ".join(str(cell) for cell in row) + " |"


def print_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table, each row as soon as it is known."""
    for line in table_lines(header, rows):
        print(line, flush=True)
    print()


def print_conditions(started_s: float) -> None:
    """Print the machine, the duration, and the machine's other load.

    Args:
        started_s: ``time.monotonic()`` at the start.
    """
    load = psutil.getloadavg()[0]
    print(
        f"{platform.system()} {platform.machine()}, {psutil.cpu_count()} cores, load {load:.1f};"
        f" Python {platform.python_version()}, mlx {version('mlx')}, mlx-lm {version('mlx-lm')};"
        f" {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC, took"
        f" {time.monotonic() - started_s:.0f} s"
    )


def print_verdict(*, reached: bool, why: str) -> None:
    """Print whether the goal was reached, with the figures."""
    print(f"**{'Reached' if reached else 'Fell short'}**: {why}\n", flush=True)
