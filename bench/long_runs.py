"""Records the results of long runs in ``docs/long-runs.md``, slice by slice, and adds them up.

``python -m bench.long_runs`` prints what the recorded slices have in all, by command.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bench.report.section import current_commit

PAGE: Final = Path(__file__).parents[1] / "docs" / "long-runs.md"
#: A run is added above this line, so the table grows downwards.
END: Final = "<!-- runs: end -->"
#: Module, first and last seed, and outcome of a row.
_ROW: Final = re.compile(
    r"^\| \S+ \| `\S+` \| `python -m (\S+)[^`]*` \| (\d+)(?: to (\d+))? \| (.*) \|$", re.MULTILINE
)
_COUNT: Final = re.compile(r"([\d,]+) ([a-z][a-z ]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """One slice of a long run.

    Attributes:
        commit: The commit at its start.
        module: What ``python -m`` ran.
        arguments: Its arguments, without the seed.
        seed: Its seed, or the first of its seeds.
        seeds: Number of its seeds.
    """

    commit: str
    module: str
    arguments: str
    seed: int
    seeds: int = 1

    def record(self, outcome: str, page: Path = PAGE) -> None:
        """Add the slice to the page.

        Args:
            outcome: Counts, each a number and what is counted, and the violations.
            page: The page with the table.
        """
        command = f"python -m {self.module} {self.arguments} --seed {self.seed}"
        seeds = f"{self.seed}" + (f" to {self.seed + self.seeds - 1}" if self.seeds > 1 else "")
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        cells = (day, f"`{self.commit}`", f"`{' '.join(command.split())}`", seeds, outcome)
        with page.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # another command may end just now
            text = with_run(file.read(), cells)
            file.seek(0)
            file.write(text)


def with_run(page: str, cells: tuple[str, ...]) -> str:
    """Return a page with one more row in its table.

    Raises:
        ValueError: The page has no table to add to.
    """
    before, mark, after = page.partition(END)
    if not mark:
        raise ValueError(f"the page has no line {END}")
    return f"{before}| {' | '.join(cells)} |\n{mark}{after}"


def next_seed(page: str, module: str) -> int:
    """Return the seed after the last one that a slice of a module has used."""
    last = (int(end or seed) for name, seed, end, _ in _ROW.findall(page) if name == module)
    return max(last, default=0) + 1


def sums(page: str) -> dict[str, Counter[str]]:
    """Return the sums of the counts of all slices, by module."""
    found: dict[str, Counter[str]] = {}
    for module, _, _, outcome in _ROW.findall(page):
        counts = found.setdefault(module, Counter(slices=0))
        counts["slices"] += 1
        for number, what in _COUNT.findall(outcome):
            counts[what] += int(number.replace(",", ""))
    return found


def begin(module: str, arguments: str, *, seed: int | None) -> LongRun:
    """Return the next slice of a module.

    Args:
        module: What ``python -m`` runs.
        arguments: Its arguments, without the seed.
        seed: Its first seed; ``None`` for the one after the recorded ones.
    """
    first = next_seed(PAGE.read_text(encoding="utf-8"), module) if seed is None else seed
    return LongRun(commit=current_commit(), module=module, arguments=arguments, seed=first)


def run_slices(
    module: str,
    arguments: str,
    options: argparse.Namespace,
    run_slice: Callable[[LongRun, float], bool],
) -> int:
    """Run one slice after the other until one fails or the time is over.

    Args:
        module: What ``python -m`` runs.
        arguments: Its arguments, without the seed.
        options: What ``add_slice_options`` has parsed.
        run_slice: Runs a slice in so many seconds and returns whether it kept every promise.

    Returns:
        The exit code.
    """
    until = time.monotonic() + options.minutes * 60
    for number in range(options.slices):
        if number and time.monotonic() > until:
            break
        seed = None if options.seed is None else options.seed + number
        if not run_slice(begin(module, arguments, seed=seed), until - time.monotonic()):
            return 1
    return 0


def add_slice_options(parser: argparse.ArgumentParser, *, slices: int) -> None:
    """Add the options that all long runs have; ``slices`` is the default of theirs."""
    parser.add_argument(
        "--seed", type=int, help="of the first slice; default: after those in docs/long-runs.md"
    )
    parser.add_argument("--slices", type=int, default=slices, help="runs, each with the next seed")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="nothing begins later than this"
    )
    parser.add_argument("--record", action="store_true", help="add each slice to docs/long-runs.md")


def main() -> int:
    """Print the sums."""
    for module, counts in sums(PAGE.read_text(encoding="utf-8")).items():
        said = ", ".join(f"{count:,} {what}" for what, count in counts.items())
        sys.stdout.write(f"{module}: {said}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
