"""The floors of branch coverage by layer: ``python -m tests.architecture.coverage_floor REPORT``.

``REPORT`` is the file that ``coverage json`` writes. ``make coverage`` makes it and calls this.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

#: Percent of statements and branches that the tests run, at least.
FLOORS = {"api": 85.0, "domain": 95.0, "ops": 85.0, "worker": 85.0}
#: Modules of which the tests run every statement and every branch.
WHOLE = (
    "domain/job/commit.py",
    "domain/job/decisions.py",
    "domain/kv/pool.py",
    "ops/log/writer.py",
)


def shares(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the covered share of each layer in percent, statements and branches together.

    Raises:
        ValueError: A layer has no measured file.
    """
    covered, total = Counter[str](), Counter[str]()
    for name, file in report["files"].items():
        layer, summary = Path(name).parts[0], file["summary"]
        covered[layer] += summary["covered_lines"] + summary["covered_branches"]
        total[layer] += summary["num_statements"] + summary["num_branches"]
    missing = [layer for layer in FLOORS if not total[layer]]
    if missing:
        message = f"no file of {', '.join(missing)} was measured"
        raise ValueError(message)
    return {layer: 100 * covered[layer] / total[layer] for layer in FLOORS}


def least_covered(report: Mapping[str, Any], *, count: int = 15) -> Iterator[tuple[str, int]]:
    """Yield the files with the most statements and branches that no test runs."""

    def missing(name: str) -> int:
        summary = report["files"][name]["summary"]
        return int(summary["missing_lines"] + summary["missing_branches"])

    for name in sorted(report["files"], key=missing, reverse=True)[:count]:
        yield name, missing(name)


def not_whole(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the modules of ``WHOLE`` of which a line or a branch was not run."""
    for name in WHOLE:
        summary = report["files"][name]["summary"]
        if summary["missing_lines"] or summary["missing_branches"]:
            yield name


def main(arguments: list[str]) -> int:
    """Print the table; return 1 if a layer or a module is below its floor."""
    report = json.loads(Path(arguments[0]).read_text())
    result = shares(report)
    lines = ["| layer | covered, % | floor, % |", "|---|--:|--:|"]
    lines += [f"| {layer} | {share:.1f} | {FLOORS[layer]:.0f} |" for layer, share in result.items()]
    lines += ["", "| file | not run |", "|---|--:|"]
    lines += [f"| {name} | {missing} |" for name, missing in least_covered(report)]
    holes = list(not_whole(report))
    lines += [f"{name} is not run whole" for name in holes]
    sys.stdout.write("\n".join([*lines, ""]))
    return int(bool(holes) or any(share < FLOORS[layer] for layer, share in result.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
