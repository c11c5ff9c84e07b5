"""The tables of ``docs/mutation.md``: packages with their counts, and modules with survivors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from tests.mutation.results import ROOT, Outcome

PAGE: Final = ROOT / "docs" / "mutation.md"
PACKAGES: Final = ("<!-- packages: begin -->", "<!-- packages: end -->")
MODULES: Final = ("<!-- modules: begin -->", "<!-- modules: end -->")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The mutants of one module, counted.

    Attributes:
        outcomes: How many have each outcome; equivalent ones are not among the survivors.
        equivalent: How many survived and were reviewed as equivalent.
    """

    outcomes: Counter[Outcome]
    equivalent: int = 0

    @property
    def survivors(self) -> int:
        """Mutants that some test runs and no test notices."""
        return self.outcomes[Outcome.SURVIVED]


def with_results(page: str, tallies: Mapping[str, Tally], *, day: str, commit: str) -> str:
    """Return a page with the rows of a run in the place of earlier rows of the same modules.

    Args:
        page: The page with both tables.
        tallies: The counts of each module of the run, by path; a package is counted as a whole.
        day: Date of the run.
        commit: Its commit.
    """
    packages: dict[str, list[Tally]] = {}
    for module, tally in tallies.items():
        packages.setdefault(f"{PurePosixPath(module).parent}/", []).append(tally)
    rows = {name: _row(name, each, day, commit) for name, each in packages.items()}
    page = _replace(page, PACKAGES, rows, gone=packages)
    left = {
        module: f"| `{module}` | {tally.survivors} | {tally.outcomes[Outcome.UNTESTED]} |"
        for module, tally in tallies.items()
        if tally.survivors or tally.outcomes[Outcome.UNTESTED]
    }
    return _replace(page, MODULES, left, gone=tallies)


def recorded_survivors(page: str) -> dict[str, int]:
    """Return the number of survivors of each module that the page lists."""
    return {name: int(row.split("|")[2]) for name, row in _rows(page, MODULES).items()}


def recorded_packages(page: str) -> frozenset[str]:
    """Return the packages whose results the page lists, such as ``domain/job``."""
    return frozenset(name.rstrip("/") for name in _rows(page, PACKAGES))


def more_survivors(page: str, tallies: Mapping[str, Tally]) -> dict[str, int]:
    """Return the survivors of each module that has more of them than the page lists.

    Packages that the page does not list were not run before, so there is nothing to compare.
    """
    packages, recorded = recorded_packages(page), recorded_survivors(page)
    return {
        module: tally.survivors
        for module, tally in tallies.items()
        if str(PurePosixPath(module).parent) in packages
        and tally.survivors > recorded.get(module, 0)
    }


def _row(name: str, tallies: Iterable[Tally], day: str, commit: str) -> str:
    counts, equivalent = Counter[Outcome](), 0
    for tally in tallies:
        counts += tally.outcomes
        equivalent += tally.equivalent
    total = counts.total() + equivalent
    cells = [
        total,
        counts[Outcome.KILLED],
        equivalent,
        counts[Outcome.SURVIVED],
        counts[Outcome.UNTESTED],
    ]
    share = 100 * counts[Outcome.KILLED] / max(1, total - equivalent)
    figures = " | ".join(f"{cell:,}" for cell in cells)
    return f"| `{name}` | {figures} | {share:.1f} | {day} | `{commit}` |"


def _rows(page: str, marks: tuple[str, str]) -> dict[str, str]:
    begin, end = marks
    table = page.partition(begin)[2].partition(end)[0]
    return {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}


def _replace(
    page: str, marks: tuple[str, str], rows: Mapping[str, str], *, gone: Iterable[str]
) -> str:
    begin, end = marks
    before, _, rest = page.partition(begin)
    table, _, after = rest.partition(end)
    head = [line for line in table.splitlines() if line.startswith("|") and "`" not in line]
    kept = _rows(page, marks)
    for name in gone:
        kept.pop(name, None)
    kept |= rows
    lines = [*head, *(kept[name] for name in sorted(kept))]
    return f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}"


def read(page: Path = PAGE) -> str:
    """Return the text of the page."""
    return page.read_text(encoding="utf-8")
