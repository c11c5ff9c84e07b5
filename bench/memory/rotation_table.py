"""The table of agents that take turns: its runs, its rows, and what they fall short of."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from bench.memory.agents import Workload

#: Longest run of a child, in seconds.
CHILD_S = 3600.0
UNLIMITED = "unlimited"
#: Budgets, and how many of the agents share each.
BUDGETS = ((UNLIMITED, 5), ("0.8x all", 5), ("1.35x one", 3), ("1.05x one", 3))
#: The same where each last message ends in a reminder that changes.
REMINDER_BUDGETS = ((UNLIMITED, 5), ("0.33x all", 5))
REMINDER_TOKENS = 8
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


def rotations(shapes: Sequence[str], *, quick: bool, reminder: int = 0) -> Iterator[Rotation]:
    """Run all budgets on some shapes; the unlimited run of each comes first.

    Args:
        quick: Whether agents are few and short.
        reminder: Tokens at the end of each last message that the next prompt does not have.
    """
    for shape in shapes:
        for budget, agents in REMINDER_BUDGETS if reminder else BUDGETS:
            for at_once in (False, True):
                workload = QUICK_WORKLOAD if quick else Workload(agents=agents)
                workload = replace(workload, agents=min(agents, workload.agents), reminder=reminder)
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
