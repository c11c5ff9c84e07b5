"""How well do several agents share a memory that is smaller than their contexts?

``python -m bench.memory [--quick] [--shapes A B] [--json FILE]``. Agents take five
turns, each with the result of a tool, one after another and all at once, within several budgets and
without a limit.
Every run is a process of its own, on a block store of its own. The networks are random, in float32,
with the layers, head ratios and windows of published models; see ``shapes``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bench.memory.rotation import Workload
from bench.memory.shapes import QUICK_SHAPES, SHAPES
from bench.report.section import Section, print_conditions, table_lines, use_worker_allocator

#: Longest run of a child, in seconds.
CHILD_S = 3600.0
UNLIMITED = "unlimited"
#: Budgets, and how many of the agents share each.
BUDGETS = ((UNLIMITED, 5), ("0.8x all", 5), ("1.35x one", 3), ("1.05x one", 3))
QUICK_WORKLOAD = Workload(agents=3, turns=3, system=64, task=160, result=32, answer=4)
HEADER = (
    *("shape", "budget", "agents", ">reused median", ">worst", ">recomputed", ">read MB"),
    *(">written MB", ">disk / live", ">first token ms", ">total s", ">of unlimited", ">CPU s"),
    *(">peak MB", ">live MB", ">budget MB", ">step MB", ">equal answers"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """One run and its figures, as ``RotationFigures`` has them."""

    shape: str
    budget: str
    at_once: bool
    agents: int
    figures: dict[str, Any]


def rotations(shapes: Sequence[str], *, quick: bool) -> Iterator[Rotation]:
    """Run all budgets on some shapes; the unlimited run of each comes first.

    Args:
        quick: Whether agents are few and short.
    """
    for shape in shapes:
        for budget, agents in BUDGETS:
            for at_once in (False, True):
                workload = QUICK_WORKLOAD if quick else Workload(agents=agents)
                workload = replace(workload, agents=min(agents, workload.agents))
                yield rotation(shape, budget, workload, at_once=at_once, quick=quick)


def rotation(
    shape: str, budget: str, workload: Workload, *, at_once: bool, quick: bool
) -> Rotation:
    """Run some agents in a process of their own."""
    with tempfile.TemporaryDirectory() as name:
        given = {
            "directory": name,
            "workload": dataclasses.asdict(workload),
            "options": {"shape": shape, "budget": budget, "at_once": at_once, "quick": quick},
        }
        child = [sys.executable, "-m", "bench.memory.rotation", json.dumps(given)]
        done = subprocess.run(child, check=True, stdout=subprocess.PIPE, timeout=CHILD_S)
        figures = json.loads(done.stdout.splitlines()[-1])
    return Rotation(
        shape=shape, budget=budget, at_once=at_once, agents=workload.agents, figures=figures
    )


def rows(runs: Iterator[Rotation], done: list[Rotation]) -> Iterator[tuple[object, ...]]:
    """Return a row of the table for each run, and append the run to ``done``."""
    for run in runs:
        done.append(run)
        figures = run.figures
        unlimited = _unlimited(run, done)
        yield (
            run.shape,
            _budget(run),
            f"{run.agents} {'at once' if run.at_once else 'in turn'}",
            f"{figures['reused_median']:.1%}",
            f"{figures['reused_worst']:.1%}",
            f"{figures['recomputed_tokens']:,}",
            _mb(figures["read_bytes"]),
            _mb(figures["written_bytes"]),
            f"{figures['stored_bytes'] / figures['live_bytes']:.2f}",
            f"{1000 * figures['first_token_s']:,.0f}",
            f"{figures['total_s']:.1f}",
            _time_ratio(run, unlimited),
            f"{figures['cpu_s']:.1f}",
            _mb(figures["peak_bytes"]),
            _mb(figures["live_bytes"]),
            "-" if run.budget == UNLIMITED else _mb(figures["budget_bytes"]),
            _mb(unlimited.figures["step_bytes"]),
            equal_answers(run, _in_turn(run, done)),
        )


def equal_answers(run: Rotation, unlimited: Rotation) -> str:
    """Return how many answers are those of the unlimited run, of how many.

    Returns:
        ``-`` where the contexts had to be shorter than in the unlimited run.
    """
    if run.figures["longest_tokens"] < run.figures["wanted_tokens"]:
        return "-"
    pairs = [
        (ours, theirs)
        for agent, agent_answers in enumerate(run.figures["answers"])
        for ours, theirs in zip(agent_answers, unlimited.figures["answers"][agent], strict=True)
    ]
    return f"{sum(ours == theirs for ours, theirs in pairs)} of {len(pairs)}"


def _unlimited(run: Rotation, done: Sequence[Rotation]) -> Rotation:
    return next(
        other
        for other in done
        if (other.shape, other.budget, other.at_once) == (run.shape, UNLIMITED, run.at_once)
    )


def _in_turn(run: Rotation, done: Sequence[Rotation]) -> Rotation:
    """Return the unlimited run whose answers are right: one agent at a time."""
    return _unlimited(replace(run, at_once=False), done)


def _time_ratio(run: Rotation, unlimited: Rotation) -> str:
    """Return the time of a run over that of the same agents without a limit."""
    if run.agents == unlimited.agents:
        return f"{run.figures['total_s'] / unlimited.figures['total_s']:.2f}"
    if run.at_once:
        return "-"
    return f"{run.figures['total_s'] / sum(unlimited.figures['agent_s'][: run.agents]):.2f}"


def _budget(run: Rotation) -> str:
    """Return the budget, with the share of the contexts' length that the engine accepts within."""
    accepted, wanted = run.figures["longest_tokens"], run.figures["wanted_tokens"]
    return run.budget if accepted == wanted else f"{run.budget}, {accepted} of {wanted} tokens"


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f}"


def main() -> None:
    """Measure, print Markdown, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short contexts, a quarter of layers")
    parser.add_argument("--shapes", nargs="*", choices=SHAPES, help="by default all")
    parser.add_argument("--json", type=Path, help="file that receives all figures")
    given = parser.parse_args()
    use_worker_allocator()
    started_s = time.monotonic()
    shapes = given.shapes or (QUICK_SHAPES if given.quick else tuple(SHAPES))
    runs: list[Rotation] = []
    table = []
    started = rotations(shapes, quick=given.quick)
    for line in table_lines(HEADER, rows(started, runs)):
        print(line, flush=True)
        table.append(line)
    Section(table=table, figures=[asdict(run) for run in runs]).write(given.json)
    print_conditions(started_s)


if __name__ == "__main__":
    main()
