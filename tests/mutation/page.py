"""The table of ``docs/mutation.md``: the results of each module that was run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutation.results import ROOT, Outcome

PAGE: Final = ROOT / "docs" / "mutation.md"
BEGIN: Final = "<!-- modules: begin -->"
END: Final = "<!-- modules: end -->"
#: Place of the survivors among the cells of a row, behind the empty one at its beginning.
_SURVIVED: Final = 5


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
        page: The page with the table.
        tallies: The counts of each module of the run, by path.
        day: Date of the run.
        commit: Its commit.
    """
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    head = [line for line in table.splitlines() if line.startswith("|") and "`" not in line]
    rows = _rows(page)
    rows |= {module: _row(module, tally, day, commit) for module, tally in tallies.items()}
    lines = [BEGIN, *head, *(rows[module] for module in sorted(rows)), END]
    return before + "\n".join(lines) + after


def recorded_survivors(page: str) -> dict[str, int]:
    """Return the number of survivors of each module that the page lists."""
    return {module: int(row.split("|")[_SURVIVED]) for module, row in _rows(page).items()}


def more_survivors(page: str, tallies: Mapping[str, Tally]) -> dict[str, int]:
    """Return the survivors of each module that has more of them than the page lists.

    Modules that the page does not list were not run before, so there is nothing to compare.
    """
    recorded = recorded_survivors(page)
    return {
        module: tally.survivors
        for module, tally in tallies.items()
        if tally.survivors > recorded.get(module, tally.survivors)
    }


def read(page: Path = PAGE) -> str:
    """Return the text of the page."""
    return page.read_text(encoding="utf-8")


def _rows(page: str) -> dict[str, str]:
    table = page.partition(BEGIN)[2].partition(END)[0]
    return {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}


def _row(module: str, tally: Tally, day: str, commit: str) -> str:
    counts = tally.outcomes
    total = counts.total() + tally.equivalent
    share = 100 * counts[Outcome.KILLED] / max(1, counts.total())
    cells = [f"`{module}`", total, counts[Outcome.KILLED], tally.equivalent, tally.survivors]
    cells += [counts[Outcome.UNTESTED], f"{share:.1f}", day, f"`{commit}`"]
    return f"| {' | '.join(map(str, cells))} |"
