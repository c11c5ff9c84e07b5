"""Changes ``domain/`` in small ways and runs the unit tests on each change: ``make mutation``.

A change that no test notices survives. The command prints the survivors. It returns 1 if a module
has more of them than ``docs/mutation.md`` lists; ``--record`` writes the results into the page.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from bench.report.section import current_commit
from tests.mutation import page
from tests.mutation.page import Tally
from tests.mutation.results import ROOT, Change, Mutant, Outcome, changes, mutants, reviewed

_MUTANTS: Final = ROOT / "mutants"
_PROGRAM: Final = ROOT / ".venv" / "mutation" / "bin" / "mutmut"
#: Hours of work, which leave the machine to others.
_NICENESS: Final = 19


def main() -> int:
    """Run mutmut on the given packages, print the survivors and compare or record them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument(
        "paths", nargs="*", default=["domain"], help="packages or modules, such as domain/job"
    )
    parser.add_argument("--record", action="store_true", help="write docs/mutation.md")
    parser.add_argument(
        "--again", action="store_true", help="only read the results of the last run"
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    if not asked.again:
        code = _run(asked.paths, asked.processes)
        if code:
            return code
    found = [one for path in asked.paths for one in mutants(_MUTANTS, path.rstrip("/"))]
    tallies = dict(_tallies(found))
    text = page.read()
    if asked.record:
        day = datetime.now(UTC).strftime("%Y-%m-%d")
        text = page.with_results(text, tallies, day=day, commit=current_commit())
        page.PAGE.write_text(text, encoding="utf-8")
        return 0
    return int(_exceed(tallies, text))


def _run(paths: Iterable[str], processes: int) -> int:
    """Run mutmut and return its exit code."""
    patterns = [f"{path.rstrip('/').removesuffix('.py').replace('/', '.')}.*" for path in paths]
    if patterns == ["domain.*"]:
        patterns = []  # mutmut then goes on where an earlier run ended, and repeats nothing
    os.nice(_NICENESS)
    command = [str(_PROGRAM), "run", "--max-children", str(processes), *patterns]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _tallies(found: Iterable[Mutant]) -> Iterator[tuple[str, Tally]]:
    """Yield the counts of each module, and print its survivors."""
    equivalent = reviewed()
    modules: dict[str, list[Mutant]] = {}
    for one in found:
        modules.setdefault(one.module, []).append(one)
    for module, each in modules.items():
        left = [one.name for one in each if one.outcome is Outcome.SURVIVED]
        changed = changes(_MUTANTS, module, left)
        known = {name for name, change in changed.items() if change in equivalent}
        for name, change in changed.items():
            if name not in known:
                _print(name, change)
        counts = Counter(one.outcome for one in each if one.name not in known)
        yield module, Tally(outcomes=counts, equivalent=len(known))


def _print(name: str, change: Change) -> None:
    removed = "".join(f"\n  - {line}" for line in change.was.splitlines())
    added = "".join(f"\n  + {line}" for line in change.becomes.splitlines())
    sys.stdout.write(f"{name} survived: {change.function}{removed}{added}\n")


def _exceed(tallies: dict[str, Tally], text: str) -> bool:
    """Print each module with more survivors than the page lists; return whether there is one."""
    more = page.more_survivors(text, tallies)
    recorded = page.recorded_survivors(text)
    for module, count in more.items():
        sys.stdout.write(f"{module}: {count} survivors, {recorded.get(module, 0)} are recorded\n")
    return bool(more)


if __name__ == "__main__":
    sys.exit(main())
