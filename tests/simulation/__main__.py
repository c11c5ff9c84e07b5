"""Simulates many histories of the service: ``python -m tests.simulation --examples 20000``.

A life that breaks a promise ends the run: its seed, its moves and what was objected to are printed,
and ``--replay SEED`` lives it again. ``--weeks 1000`` simulates weeks of a computer instead.
``--planted`` shows that planted bugs are found.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.long_runs import begin
from tests.simulation.planted import PLANTED, PLANTED_IN_WEEKS
from tests.simulation.walk import BrokenPromise, walk
from tests.simulation.week import live_week
from tests.support.polling import now_s

#: Between two lines of progress, in seconds.
PROGRESS_S = 15.0
#: Lives of one row in the records.
SLICE_LIVES = 10_000
#: Lives within which a planted bug is found.
PLANTED_LIVES_MAX = 3000
#: Counts in the record of a run.
_RECORDED = ("jobs", "batches", "webhook messages", "swaps", "crashes")


def main() -> int:
    """Run what was asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--examples", type=int, default=20_000, help="lives to simulate")
    parser.add_argument("--seed", type=int, help="of the first life; the others count up from it")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="stop after so long, if that is sooner"
    )
    parser.add_argument("--weeks", type=int, help="simulate weeks instead of lives")
    parser.add_argument("--replay", type=int, metavar="SEED", help="live one life again")
    parser.add_argument("--planted", action="store_true", help="plant bugs and look for them")
    parser.add_argument(
        "--record",
        action="store_true",
        help=f"add each {SLICE_LIVES:,} lives to docs/long-runs.md, after the seeds that it has",
    )
    asked = parser.parse_args()
    _stay_on_one_core()
    if asked.planted:
        return _find_planted()
    kind = _LIVES if asked.weeks is None else _WEEKS
    if asked.replay is not None:
        return _run(kind, asked.replay, 1, math.inf).code
    return _run_slices(asked, kind)


def _stay_on_one_core() -> None:
    """Pin the process: its threads take turns, and a turn that changes the core takes longer."""
    if sys.platform == "linux":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


@dataclass(frozen=True, slots=True)
class _Result:
    """Exit code, number of lives, and what happened in them."""

    code: int
    lives: int
    outcome: str


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is simulated.

    Attributes:
        name: In a record, and of the option that chooses it.
        live: Lives one of them by its seed.
        recorded: Counts in the record of a run.
    """

    name: str
    option: str
    live: Callable[[int, Counter[str]], object]
    recorded: tuple[str, ...]


_LIVES = _Kind("lives", "examples", walk, _RECORDED)
_WEEKS = _Kind("weeks", "weeks", live_week, (*_RECORDED, "held jobs", "sleeps", "power cuts"))


def _run_slices(asked: argparse.Namespace, kind: _Kind) -> int:
    left, seed, until = vars(asked)[kind.option], asked.seed, now_s() + 60 * asked.minutes
    if seed is None and not asked.record:
        seed = random.SystemRandom().randrange(10**9)
    while left > 0 and now_s() < until:
        began, run = now_s(), begin("tests.simulation", "", seed=seed)
        done = _run(kind, run.seed, min(left, SLICE_LIVES) if asked.record else left, until)
        left, seed = left - done.lives, run.seed + done.lives
        if asked.record:
            run = replace(run, arguments=f"--{kind.option} {done.lives}", seeds=done.lives)
            run.record(f"{done.outcome}; {(now_s() - began) / 60:.1f} min")
        if done.code:
            return done.code
    return 0


def _run(kind: _Kind, first: int, count: int, until: float) -> _Result:
    tally: Counter[str] = Counter()
    began = last = now_s()
    _print(f"seeds from {first}")
    lives = 0
    for seed in range(first, first + count):
        lives += 1
        try:
            kind.live(seed, tally)
        except BrokenPromise as broken:
            _report(broken, kind)
            return _Result(1, lives, f"{lives:,} {kind.name}; 1 violations: seed {broken.seed}")
        now = now_s()
        if now - last > PROGRESS_S:
            last = now
            _print(f"{lives} {kind.name}, {lives / (now - began):.1f} a second, seed {seed}")
        if now > until:
            break
    _print(f"{lives} {kind.name} in {now_s() - began:.0f} s, no promise broken")
    for what, how_often in sorted(tally.items()):
        _print(f"{how_often:>12,}  {what}")
    counts = "; ".join(f"{tally[what]:,} {what}" for what in kind.recorded)
    return _Result(0, lives, f"{lives:,} {kind.name}; {counts}; 0 violations")


def _find_planted() -> int:
    missed = 0
    bugs = [(one, _LIVES) for one in PLANTED.items()]
    bugs += [(one, _WEEKS) for one in PLANTED_IN_WEEKS.items()]
    for (name, plant), kind in bugs:
        with plant():
            found = _first_broken(kind)
        missed += found is None
        _print(f"{name}: " + (found or f"NOT FOUND in {PLANTED_LIVES_MAX} {kind.name}"))
    return 1 if missed else 0


def _first_broken(kind: _Kind) -> str | None:
    for seed in range(PLANTED_LIVES_MAX):
        try:
            kind.live(seed, Counter())
        except BrokenPromise as broken:
            return f"found in the {kind.name[:-1]} of seed {seed}: {str(broken.__cause__)[:70]}"
    return None


def _report(broken: BrokenPromise, kind: _Kind) -> None:
    _print(f"seed {broken.seed} broke a promise after {len(broken.trace)} moves:")
    _print("  " + " ".join(broken.trace))
    if broken.__cause__ is not None:
        traceback.print_exception(broken.__cause__)
    option = "" if kind is _LIVES else f"--{kind.option} 1 "
    _print(f"again: python -m tests.simulation {option}--replay {broken.seed}")


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a program's output


if __name__ == "__main__":
    sys.exit(main())
